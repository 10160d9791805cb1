package etcdshim

import (
	"context"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"

	"github.com/kubase/kubase/pkg/sqlstore"
)

// Alarm lists, raises and clears alarms, for any member, as in etcd.
func (s *maintenanceServer) Alarm(ctx context.Context, r *pb.AlarmRequest) (*pb.AlarmResponse, error) {
	out := &pb.AlarmResponse{}
	alarm := sqlstore.Alarm{Member: r.MemberID, Kind: sqlstore.AlarmKind(r.Alarm)}
	switch r.Action {
	case pb.AlarmRequest_GET:
		all, err := s.store.Alarms(ctx)
		if err != nil {
			return nil, s.rpcError(err)
		}
		for _, a := range all {
			if r.Alarm == pb.AlarmType_NONE || a.Kind == alarm.Kind {
				out.Alarms = append(out.Alarms, alarmMember(a))
			}
		}
	case pb.AlarmRequest_ACTIVATE:
		if r.Alarm != pb.AlarmType_NONE {
			s.store.RaiseAlarm(ctx, alarm)
			out.Alarms = append(out.Alarms, alarmMember(alarm))
		}
	case pb.AlarmRequest_DEACTIVATE:
		found, err := s.store.ClearAlarm(ctx, alarm)
		if err != nil {
			return nil, s.rpcError(err)
		}
		if found {
			out.Alarms = append(out.Alarms, alarmMember(alarm))
		}
	}
	out.Header = s.header(s.store.Revision())
	return out, nil
}

func alarmMember(a sqlstore.Alarm) *pb.AlarmMember {
	return &pb.AlarmMember{MemberID: a.Member, Alarm: pb.AlarmType(a.Kind)}
}

// checkAlarms refuses writes while there is an alarm.
func (s *server) checkAlarms(grows bool) error {
	switch {
	case s.store.Alarmed(sqlstore.AlarmCorrupt):
		return rpctypes.ErrGRPCCorrupt
	case grows && s.store.Alarmed(sqlstore.AlarmNoSpace):
		return rpctypes.ErrGRPCNoSpace
	}
	return nil
}

// checkQuota refuses a write that would let the database grow over its quota, and raises the alarm. It comes before anything else is
// looked at, as in etcd; but the alarm is for those who do not show a token that is none.
func (s *server) checkQuota(ctx context.Context) error {
	if !s.quota.exceeded(ctx, quotaInterval) {
		return nil
	}
	if _, err := s.permit(ctx, anybody); err == nil && !s.store.Alarmed(sqlstore.AlarmNoSpace) {
		// An alarm that has just been cleared must not come back because of what was true before.
		if !s.quota.exceeded(ctx, 0) {
			return nil
		}
		s.alarmNoSpace()
	}
	return rpctypes.ErrGRPCNoSpace
}

// alarmTimeout is how long a call that fails anyway waits for its alarm to be stored.
const alarmTimeout = time.Second

func (s *server) alarmNoSpace() {
	ctx, cancel := context.WithTimeout(s.stopping, alarmTimeout)
	defer cancel()
	s.store.RaiseAlarm(ctx, sqlstore.Alarm{Member: s.member, Kind: sqlstore.AlarmNoSpace})
}
