package etcdshim

import (
	"context"
	"errors"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"go.etcd.io/etcd/server/v3/auth"
	"golang.org/x/crypto/bcrypt"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/kubase/kubase/pkg/sqlstore"
)

// translations says which of etcd's errors tells a client what the store said; the first that matches counts. A write that was not
// done and one that may have been get different texts; neither is ever answered as success or as a lost comparison.
var translations = []struct {
	store error
	etcd  error
}{
	{sqlstore.ErrCompacted, rpctypes.ErrGRPCCompacted},
	{sqlstore.ErrFutureRevision, rpctypes.ErrGRPCFutureRev},
	{sqlstore.ErrKeyNotFound, rpctypes.ErrGRPCKeyNotFound},
	{sqlstore.ErrDuplicateKey, rpctypes.ErrGRPCDuplicateKey},
	{sqlstore.ErrTooManyChanges, rpctypes.ErrGRPCTooManyOps},
	{sqlstore.ErrKeyTooLong, rpctypes.ErrGRPCRequestTooLarge},
	{sqlstore.ErrLeaseNotFound, rpctypes.ErrGRPCLeaseNotFound},
	{sqlstore.ErrLeaseExists, rpctypes.ErrGRPCLeaseExist},
	{sqlstore.ErrNoSpace, rpctypes.ErrGRPCNoSpace},
	{sqlstore.ErrClosed, rpctypes.ErrGRPCStopped},
	{sqlstore.ErrOutcomeUnknown, rpctypes.ErrGRPCTimeoutDueToConnectionLost},
	{sqlstore.ErrUnavailable, rpctypes.ErrGRPCNoLeader},
	{auth.ErrRootUserNotExist, rpctypes.ErrGRPCRootUserNotExist},
	{auth.ErrRootRoleNotExist, rpctypes.ErrGRPCRootRoleNotExist},
	{auth.ErrUserAlreadyExist, rpctypes.ErrGRPCUserAlreadyExist},
	{auth.ErrUserEmpty, rpctypes.ErrGRPCUserEmpty},
	{auth.ErrUserNotFound, rpctypes.ErrGRPCUserNotFound},
	{auth.ErrRoleAlreadyExist, rpctypes.ErrGRPCRoleAlreadyExist},
	{auth.ErrRoleNotFound, rpctypes.ErrGRPCRoleNotFound},
	{auth.ErrRoleEmpty, rpctypes.ErrGRPCRoleEmpty},
	{auth.ErrAuthFailed, rpctypes.ErrGRPCAuthFailed},
	{auth.ErrNoPasswordUser, status.Error(codes.Unknown, auth.ErrNoPasswordUser.Error())}, // etcd has none for it
	{auth.ErrPermissionNotGiven, rpctypes.ErrGRPCPermissionNotGiven},
	{auth.ErrPermissionDenied, rpctypes.ErrGRPCPermissionDenied},
	{auth.ErrRoleNotGranted, rpctypes.ErrGRPCRoleNotGranted},
	{auth.ErrPermissionNotGranted, rpctypes.ErrGRPCPermissionNotGranted},
	{auth.ErrAuthNotEnabled, rpctypes.ErrGRPCAuthNotEnabled},
	{auth.ErrInvalidAuthToken, rpctypes.ErrGRPCInvalidAuthToken},
	{auth.ErrInvalidAuthMgmt, rpctypes.ErrGRPCInvalidAuthMgmt},
	{auth.ErrAuthOldRevision, rpctypes.ErrGRPCAuthOldRevision},
	{bcrypt.ErrPasswordTooLong, status.Error(codes.Unknown, bcrypt.ErrPasswordTooLong.Error())},
	{context.Canceled, status.Error(codes.Canceled, context.Canceled.Error())},
	{context.DeadlineExceeded, rpctypes.ErrGRPCTimeout},
}

// rpcError is the error that a client gets.
func (s *server) rpcError(err error) error {
	if _, done := status.FromError(err); done {
		return err // is one already, or nil
	}
	if s.opts.AlarmWhenFull && errors.Is(err, sqlstore.ErrNoSpace) {
		s.alarmNoSpace()
	}
	for _, t := range translations {
		if errors.Is(err, t.store) {
			return t.etcd // that the database is away, and why, the store logs once
		}
	}
	s.log.Error("a request failed", "error", err)
	return status.Error(codes.Unknown, "etcdserver: "+err.Error())
}
