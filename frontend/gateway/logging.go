package gateway

import (
	"context"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"slices"
	"strings"

	"downbeat.dev/core/guard"
	"downbeat.dev/core/observe/levels"
	"downbeat.dev/frontend/gateway/oip"
)

// The log settings extension maps Triton's settings to one level: errors only, warnings, information (log_info), and
// details (log_verbose_level above 0).

// logSettings returns the settings that the extension reports.
func (g *Gateway) logSettings() map[string]any {
	level, rooms := slog.LevelInfo, ""
	if g.o.LogLevels != nil {
		level, rooms = g.o.LogLevels.Level(), g.o.LogLevels.RoomsText()
	}

	// slog has one level for details, so the verbosity is 0 or 1.
	verbose := 0
	if level <= slog.LevelDebug {
		verbose = 1
	}
	settings := map[string]any{"log_file": "", "log_format": "default", "log_verbose_level": verbose,
		"log_info": level <= slog.LevelInfo, "log_warning": level <= slog.LevelWarn, "log_error": level <= slog.LevelError}

	// Triton does not have this setting, and its clients compare the reported settings with the known ones.
	if rooms != "" {
		settings[logRooms] = rooms
	}
	return settings
}

// logRooms is the setting for the levels of single rooms, like log_rooms in the configuration.
const logRooms = "log_rooms"

// setLog changes settings; settings that are not named stay as they are. Values are bool, int64 or string.
func (g *Gateway) setLog(changes map[string]any) *fault {
	if len(changes) == 0 {
		return nil
	}
	if g.o.LogLevels == nil {
		return invalidFault("log settings: they cannot be changed here")
	}

	// Collect all changes first: after a fault none applies.
	now := g.logSettings()
	for _, name := range slices.Sorted(maps.Keys(changes)) {
		if f := changeLogSetting(now, name, changes[name]); f != nil {
			return f
		}
	}

	g.o.LogLevels.Set(levelOf(now))
	if list, ok := now[logRooms].(string); ok {
		_ = g.o.LogLevels.SetRooms(list) // already checked
	}
	return nil
}

// changeLogSetting checks a new value of a setting and stores it in settings.
func changeLogSetting(settings map[string]any, name string, value any) *fault {
	switch name {
	case "log_info", "log_warning", "log_error":
		on, ok := value.(bool)
		if !ok {
			return invalidFault("log setting %s: %v: must be true or false", name, value)
		}
		settings[name] = on

	// There is one verbose level, so every number above 0 selects it.
	case "log_verbose_level":
		n, ok := value.(int64)
		if !ok || n < 0 {
			return invalidFault("log setting %s: %v: must be a whole number, 0 or more", name, value)
		}
		settings[name] = int(min(n, 1))

	case logRooms:
		list, ok := value.(string)
		if !ok {
			return invalidFault("log setting %s: %v: must be a text", name, value)
		}
		if err := levels.CheckRooms(list); err != nil {
			return invalidFault("log setting %s: %v", name, err)
		}
		settings[name] = list

	// Clients send back all settings that they were told, so an unchanged value is no fault.
	default:
		if value != settings[name] {
			return invalidFault("log setting %s: %.40v: cannot be changed; log_info, log_warning, log_error, log_verbose_level and log_rooms can", name, value)
		}
	}
	return nil
}

// levelOf returns the level that the settings select.
func levelOf(settings map[string]any) slog.Level {
	// A level includes all levels above it, so the most verbose setting decides.
	switch {
	case settings["log_verbose_level"] != 0:
		return slog.LevelDebug
	case settings["log_info"] == true:
		return slog.LevelInfo
	case settings["log_warning"] == true:
		return slog.LevelWarn
	case settings["log_error"] == true:
		return slog.LevelError
	}
	return slog.LevelError + 4 // nothing is logged
}

// loggingBodyMax bounds the body of a change of settings.
const loggingBodyMax = 4 << 10

func (g *Gateway) restLogging(w http.ResponseWriter, r *http.Request) {
	text, err := io.ReadAll(http.MaxBytesReader(w, r.Body, loggingBodyMax))
	if err != nil {
		writeFault(w, bodyFault(err, loggingBodyMax))
		return
	}

	changes := map[string]any{}
	if len(text) > 0 {
		s := &jsonScanner{text: text}
		s.eachMember(func(key string) {
			switch c := s.peekByte(); {
			case c == 't' || c == 'f':
				changes[strings.Clone(key)] = s.readBoolean()
			case c == '"':
				changes[strings.Clone(key)] = s.readString()
			default:
				changes[strings.Clone(key)] = s.readInteger()
			}
		})
		if f := s.finish(); f != nil {
			writeFault(w, f)
			return
		}
	}

	if f := g.setLog(changes); f != nil {
		writeFault(w, f)
		return
	}
	guard.WriteJSON(w, http.StatusOK, g.logSettings())
}

// LogSettings changes the given settings and returns all.
func (s *grpcServer) LogSettings(_ context.Context, r *oip.LogSettingsRequest) (*oip.LogSettingsResponse, error) {
	changes := map[string]any{}
	for key, v := range r.Settings {
		switch v := v.GetParameterChoice().(type) {
		case *oip.LogSettingsRequest_SettingValue_BoolParam:
			changes[strings.Clone(key)] = v.BoolParam
		case *oip.LogSettingsRequest_SettingValue_Uint32Param:
			changes[strings.Clone(key)] = int64(v.Uint32Param)
		case *oip.LogSettingsRequest_SettingValue_StringParam:
			changes[strings.Clone(key)] = strings.Clone(v.StringParam)
		}
	}
	if f := s.g.setLog(changes); f != nil {
		return nil, f.GRPCStatus().Err()
	}

	told := map[string]*oip.LogSettingsResponse_SettingValue{}
	for key, value := range s.g.logSettings() {
		switch value := value.(type) {
		case bool:
			told[key] = &oip.LogSettingsResponse_SettingValue{ParameterChoice: &oip.LogSettingsResponse_SettingValue_BoolParam{BoolParam: value}}
		case int:
			told[key] = &oip.LogSettingsResponse_SettingValue{ParameterChoice: &oip.LogSettingsResponse_SettingValue_Uint32Param{Uint32Param: uint32(value)}}
		case string:
			told[key] = &oip.LogSettingsResponse_SettingValue{ParameterChoice: &oip.LogSettingsResponse_SettingValue_StringParam{StringParam: value}}
		}
	}
	return &oip.LogSettingsResponse{Settings: told}, nil
}
