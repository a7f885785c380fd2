package gateway

import (
	"crypto/subtle"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"slices"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"

	"downbeat.dev/frontend/gateway/oip"
)

// Restrictions say which classes of endpoints require a header of their own: Triton's --http-restricted-api and
// --grpc-restricted-protocol. They apply in addition to tokens, which decide who may call at all. Immutable.
type Restrictions struct {
	rest, grpc map[string]restriction // by class
}

// restriction is the header that a class requires.
type restriction struct{ key, value string }

// The classes of endpoints, under Triton's names.
const (
	classHealth     = "health"
	classMetadata   = "metadata"
	classInference  = "inference"
	classMemory     = "shared-memory"
	classConfig     = "model-config"
	classRepository = "model-repository"
	classStatistics = "statistics"
	classTrace      = "trace"
	classLogging    = "logging"
)

var classes = []string{classHealth, classMetadata, classInference, classMemory, classConfig, classRepository, classStatistics, classTrace, classLogging}

// Limits of a file of restrictions.
const (
	restrictedBytesMax = 64 << 10
	headerKeyMax       = 64
	headerValueMax     = 1024
)

// rpcHeader is the prefix of every header name that a restriction of gRPC requires.
const rpcHeader = "triton-grpc-protocol-"

// OpenRestrictions reads a file of restrictions. Its lines are "http CLASS,…:KEY=VALUE" or "grpc CLASS,…:KEY=VALUE";
// empty lines and lines that begin with # are ignored. An error names the file and the line, never a value.
func OpenRestrictions(path string) (*Restrictions, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("restricted_file: %w", err)
	}
	defer f.Close()

	// One byte above the limit shows that a file is too large.
	text, err := io.ReadAll(io.LimitReader(f, restrictedBytesMax+1))
	if err == nil && len(text) > restrictedBytesMax {
		err = fmt.Errorf("larger than %d bytes", restrictedBytesMax)
	}
	if err != nil {
		return nil, fmt.Errorf("restricted_file: %s: %w", path, err)
	}

	r := &Restrictions{rest: map[string]restriction{}, grpc: map[string]restriction{}}

	n := 0
	for line := range strings.Lines(string(text)) {
		n++
		if err := r.addLine(strings.TrimSpace(line)); err != nil {
			return nil, fmt.Errorf("restricted_file: %s:%d: %w", path, n, err)
		}
	}
	return r, nil
}

// addLine adds the restrictions of one line.
func (r *Restrictions) addLine(line string) error {
	if line == "" || strings.HasPrefix(line, "#") {
		return nil
	}

	protocol, rest, _ := strings.Cut(line, " ")
	all := map[string]map[string]restriction{"http": r.rest, "grpc": r.grpc}[protocol]
	if all == nil {
		return fmt.Errorf("protocol %.20q: want http or grpc, then CLASS,…:KEY=VALUE", protocol)
	}

	// A value may also contain colons and equals signs: only the first of each separates.
	names, header, colon := strings.Cut(strings.TrimSpace(rest), ":")
	key, value, equals := strings.Cut(header, "=")
	switch {
	case !colon || !equals:
		return errors.New("want http or grpc, then CLASS,…:KEY=VALUE")
	case !isHeaderKey(key):
		return fmt.Errorf("key %.40q: want 1 to %d letters, digits or '-'", key, headerKeyMax)
	case value == "" || len(value) > headerValueMax:
		return fmt.Errorf("value of key %s: want 1 to %d bytes", key, headerValueMax)
	}

	for name := range strings.SplitSeq(names, ",") {
		if !slices.Contains(classes, name) {
			return fmt.Errorf("class %.40q: want one of %s", name, strings.Join(classes, ", "))
		}
		if _, twice := all[name]; twice {
			return fmt.Errorf("class %s is restricted twice over %s: want it once", name, protocol)
		}
		all[name] = restriction{key, value}
	}
	return nil
}

func isHeaderKey(key string) bool {
	bad := strings.IndexFunc(key, func(c rune) bool {
		return c != '-' && !('0' <= c && c <= '9' || 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z')
	})
	return key != "" && len(key) <= headerKeyMax && bad < 0
}

// isMet reports whether one of a header's values is the required one. Its duration does not reveal how much of a
// value is right.
func (x restriction) isMet(values []string) bool {
	met := 0
	for _, v := range values {
		met |= subtle.ConstantTimeCompare([]byte(v), []byte(x.value))
	}
	return met == 1
}

// restrictRoutes passes on a REST call only if it has the header that its route's class requires. The class comes
// from the route that the mux finds, so no spelling of a path evades it.
func (r *Restrictions) restrictRoutes(mux *http.ServeMux, next http.Handler) http.Handler {
	if r == nil || len(r.rest) == 0 {
		return next
	}
	return http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		_, route := mux.Handler(q)
		x, restricted := r.rest[classOfRoute(route)]
		if restricted && !x.isMet(q.Header.Values(x.key)) {
			writeFault(w, refusalFault(http.StatusForbidden, codes.Unavailable, "forbidden", "This API is restricted, expecting header '"+x.key+"'"))
			return
		}
		next.ServeHTTP(w, q)
	})
}

// checkCall returns the fault for a gRPC call without a required header; nil: not refused. The status is Triton's,
// because its clients compare the text.
func (r *Restrictions) checkCall(method string, headers metadata.MD) *fault {
	if r == nil {
		return nil
	}
	x, restricted := r.grpc[classOfMethod(method)]
	if !restricted || x.isMet(headers.Get(rpcHeader+x.key)) {
		return nil
	}
	return refusalFault(http.StatusForbidden, codes.Unavailable, "forbidden", "This protocol is restricted, expecting header '"+rpcHeader+x.key+"'")
}

// classOfRoute returns the class of a route by its pattern; empty: none, as for the page.
func classOfRoute(route string) string {
	_, path, _ := strings.Cut(route, " ")
	last := path[strings.LastIndexByte(path, '/')+1:]
	switch {
	case !strings.HasPrefix(path, "/v2"), path == "/v2/downbeat/page":
		return ""
	case strings.HasPrefix(path, "/v2/repository/"):
		return classRepository
	case strings.Contains(path, "sharedmemory/"):
		return classMemory
	case strings.HasSuffix(path, "/trace/setting"):
		return classTrace
	case path == "/v2/logging":
		return classLogging
	}

	// The last part of the path determines the class of the other routes.
	switch last {
	case "live", "ready":
		return classHealth
	case "infer", "generate", "generate_stream":
		return classInference
	case "config":
		return classConfig
	case "stats":
		return classStatistics
	case "v2", "{$}", "{model}", "{version}":
		return classMetadata
	}
	return ""
}

// classOfMethod returns the class of a gRPC method by its full name; empty: none, as for reflection.
func classOfMethod(method string) string {
	if strings.HasPrefix(method, "/grpc.health.v1.Health/") {
		return classHealth
	}

	name, ours := strings.CutPrefix(method, "/"+oip.GRPCInferenceService_ServiceDesc.ServiceName+"/")
	switch {
	case !ours:
		return ""
	case strings.Contains(name, "SharedMemory"):
		return classMemory
	case strings.HasPrefix(name, "Repository"):
		return classRepository
	}
	switch name {
	case "ServerLive", "ServerReady", "ModelReady":
		return classHealth
	case "ServerMetadata", "ModelMetadata":
		return classMetadata
	case "ModelInfer", "ModelStreamInfer":
		return classInference
	case "ModelConfig":
		return classConfig
	case "ModelStatistics":
		return classStatistics
	case "TraceSetting":
		return classTrace
	case "LogSettings":
		return classLogging
	}
	return ""
}
