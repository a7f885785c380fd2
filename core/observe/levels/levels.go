// Package levels holds a process's log levels: one for all lines, and others for the lines of single rooms, to debug
// one part while the rest stays quiet. Both can be changed while the process runs.
package levels

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync/atomic"
)

// Rooms are the rooms that may have a level of their own: the sections of the configuration.
var Rooms = []string{"core", "rdma", "backend", "frontend"}

// Names are the levels in configurations and lists, each 4 above the previous one, as in slog.
var Names = []string{"debug", "info", "warn", "error"}

// attribute is the log attribute that names a line's room.
const attribute = "room"

// Levels are the log levels of a process. Their methods may be called concurrently.
type Levels struct {
	all   slog.LevelVar
	rooms atomic.Pointer[map[string]slog.Level] // rooms with a level of their own; the map is replaced, never changed
}

// New returns levels that are the same for all rooms.
func New(all slog.Level) *Levels {
	l := &Levels{}
	l.all.Set(all)
	l.rooms.Store(&map[string]slog.Level{})
	return l
}

// Level returns the level of all rooms without one of their own.
func (l *Levels) Level() slog.Level { return l.all.Level() }

// Set sets the level of all rooms without one of their own.
func (l *Levels) Set(all slog.Level) { l.all.Set(all) }

// LevelOf returns the level of one room.
func (l *Levels) LevelOf(room string) slog.Level {
	if own, ok := (*l.rooms.Load())[room]; ok {
		return own
	}
	return l.all.Level()
}

// SetRooms sets the levels of single rooms from a list such as "rdma=debug,backend=warn". Rooms that the list omits
// lose their own level.
func (l *Levels) SetRooms(list string) error {
	rooms, err := parse(list)
	if err == nil {
		l.rooms.Store(&rooms)
	}
	return err
}

// RoomsText returns the list for SetRooms, in the order of Rooms.
func (l *Levels) RoomsText() string {
	var all []string
	own := *l.rooms.Load()
	for _, room := range Rooms {
		if level, ok := own[room]; ok {
			all = append(all, room+"="+strings.ToLower(level.String()))
		}
	}
	return strings.Join(all, ",")
}

// CheckRooms returns the error that SetRooms would return for a list.
func CheckRooms(list string) error {
	_, err := parse(list)
	return err
}

func parse(list string) (map[string]slog.Level, error) {
	rooms := map[string]slog.Level{}
	if list == "" {
		return rooms, nil
	}
	for one := range strings.SplitSeq(list, ",") {
		room, text, ok := strings.Cut(strings.TrimSpace(one), "=")
		if !ok {
			return nil, fmt.Errorf("%.40q is not allowed: want a list of room=level, such as rdma=debug,backend=warn", one)
		}
		if !slices.Contains(Rooms, room) {
			return nil, fmt.Errorf("room %.40q is not allowed: want one of %s", room, strings.Join(Rooms, ", "))
		}
		if _, twice := rooms[room]; twice {
			return nil, fmt.Errorf("room %q twice is not allowed: want each once", room)
		}

		// Accept only the names of log_level: slog's parser would also take "info+3".
		i := slices.Index(Names, text)
		if i < 0 {
			return nil, fmt.Errorf("%s=%.40q is not allowed: want debug, info, warn or error", room, text)
		}
		rooms[room] = slog.LevelDebug + 4*slog.Level(i)
	}
	return rooms, nil
}

// Handler returns a handler that passes a room's lines, from the room's level on, to next and adds the room as an
// attribute. With room "" the general level applies. next may drop lines by its own level.
func (l *Levels) Handler(room string, next slog.Handler) slog.Handler {
	if room != "" {
		next = next.WithAttrs([]slog.Attr{slog.String(attribute, room)})
	}
	return &handler{next, l, room}
}

type handler struct {
	next   slog.Handler
	levels *Levels
	room   string
}

// Enabled implements slog.Handler.
func (h *handler) Enabled(ctx context.Context, level slog.Level) bool {
	return level >= h.levels.LevelOf(h.room) && h.next.Enabled(ctx, level)
}

// Handle implements slog.Handler.
func (h *handler) Handle(ctx context.Context, r slog.Record) error { return h.next.Handle(ctx, r) }

// WithAttrs implements slog.Handler.
func (h *handler) WithAttrs(attrs []slog.Attr) slog.Handler {
	return &handler{h.next.WithAttrs(attrs), h.levels, h.room}
}

// WithGroup implements slog.Handler.
func (h *handler) WithGroup(name string) slog.Handler {
	return &handler{h.next.WithGroup(name), h.levels, h.room}
}

var _ slog.Handler = (*handler)(nil)
