package storetest

import (
	"fmt"

	"github.com/kubase/kubase/pkg/sqlstore"
)

var alarmCases = []testCase{
	{name: "AreKeptUntilCleared", run: func(f *fixture) {
		full, corrupt := sqlstore.Alarm{Member: 1<<64 - 1, Kind: sqlstore.AlarmNoSpace}, sqlstore.Alarm{Member: 1, Kind: sqlstore.AlarmCorrupt}
		f.alarmed(false, false)
		f.clear(full, false)
		f.RaiseAlarm(f.ctx, full)
		f.RaiseAlarm(f.ctx, full)
		f.alarmed(true, false, full)
		f.RaiseAlarm(f.ctx, corrupt)
		f.reopen()
		f.alarmed(true, true, full, corrupt) // by the bits of the member
		f.clear(full, true)
		f.clear(full, false)
		f.alarmed(false, true, corrupt)
		f.reopen()
		f.alarmed(false, true, corrupt)
		f.clear(corrupt, true)
		f.alarmed(false, false)
		equal(f, "revision", f.current(), 1)
	}},
}

func (f *fixture) alarmed(noSpace, corrupt bool, want ...sqlstore.Alarm) {
	f.Helper()
	equal(f, "no space", f.Alarmed(sqlstore.AlarmNoSpace), noSpace)
	equal(f, "corrupt", f.Alarmed(sqlstore.AlarmCorrupt), corrupt)
	got, err := f.Alarms(f.ctx)
	f.must(err)
	equal(f, "alarms", fmt.Sprint(got), fmt.Sprint(want))
}

func (f *fixture) clear(alarm sqlstore.Alarm, want bool) {
	f.Helper()
	found, err := f.ClearAlarm(f.ctx, alarm)
	f.must(err)
	equal(f, "found", found, want)
}
