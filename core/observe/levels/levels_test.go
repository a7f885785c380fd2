package levels

import (
	"log/slog"
	"math"
	"strings"
	"testing"
)

// TestLevelsByRoom: each room's lines begin at its own level, or at that of all; both change under loggers that were made before.
func TestLevelsByRoom(t *testing.T) {
	var log strings.Builder
	l := New(slog.LevelInfo)
	text := slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.Level(math.MinInt)})
	loggers := map[string]*slog.Logger{}
	for _, room := range append([]string{""}, Rooms...) {
		loggers[room] = slog.New(l.Handler(room, text)).With("by", "test").WithGroup("of")
	}
	written := func() (all string) {
		for _, room := range append([]string{""}, Rooms...) {
			for _, level := range []slog.Level{slog.LevelDebug, slog.LevelInfo, slog.LevelWarn, slog.LevelError} {
				log.Reset()
				loggers[room].Log(t.Context(), level, "line", "a", 1)
				if log.Len() == 0 {
					continue
				}
				all += " " + room + ":" + level.String()[:1]
				if !strings.Contains(log.String(), "by=test of.a=1") || strings.Contains(log.String(), "room="+room) != (room != "") {
					t.Errorf("%q: %s", room, log.String())
				}
			}
		}
		return all
	}

	want := func(what, has string) {
		t.Helper()
		if got := written(); got != has {
			t.Errorf("%s:%s, want%s", what, got, has)
		}
	}
	of := func(room, letters string) (s string) {
		for _, c := range letters {
			s += " " + room + ":" + string(c)
		}
		return s
	}
	want("at first", of("", "IWE")+of("core", "IWE")+of("rdma", "IWE")+of("backend", "IWE")+of("frontend", "IWE"))
	if err := l.SetRooms("rdma=debug, backend=error"); err != nil {
		t.Fatal(err)
	}
	want("two rooms", of("", "IWE")+of("core", "IWE")+of("rdma", "DIWE")+of("backend", "E")+of("frontend", "IWE"))
	l.Set(slog.LevelWarn)
	want("all", of("", "WE")+of("core", "WE")+of("rdma", "DIWE")+of("backend", "E")+of("frontend", "WE"))
	if l.Level() != slog.LevelWarn || l.RoomsText() != "rdma=debug,backend=error" {
		t.Errorf("%v %s", l.Level(), l.RoomsText())
	}

	for list, why := range map[string]string{"rdma": "room=level", "gpu=debug": "want one of core", "rdma=loud": "want debug, info, warn or error", "rdma=info+1": "want debug",
		"rdma=info,rdma=warn": "twice", "rdma=info,": "room=level"} {
		if err := l.SetRooms(list); err == nil || !strings.Contains(err.Error(), why) || CheckRooms(list) == nil {
			t.Errorf("%s: %v, want %s", list, err, why)
		}
	}
	if l.RoomsText() != "rdma=debug,backend=error" {
		t.Errorf("after lists that are refused: %s", l.RoomsText())
	}
	if err := l.SetRooms(""); err != nil || l.RoomsText() != "" {
		t.Errorf("%v %s", err, l.RoomsText())
	}
	want("none", of("", "WE")+of("core", "WE")+of("rdma", "WE")+of("backend", "WE")+of("frontend", "WE"))
}
