package gateway

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"google.golang.org/grpc/codes"

	"downbeat.dev/frontend"
	"downbeat.dev/frontend/gateway/oip"
)

// This file has the load and unload calls of the model repository extension. Backends decide whether the calls are
// allowed, by their mode of model control.

// loadMax is how long a client may wait for a load or unload; the backends continue after it.
const loadMax = 10 * time.Minute

// filePrefix precedes a file's name in the parameters of a load.
const filePrefix = "file:"

// loadModel loads a model. The override replaces its files.
func (g *Gateway) loadModel(ctx context.Context, name string, o frontend.Override) *fault {
	ctx, cancel := context.WithTimeout(ctx, loadMax)
	defer cancel()
	return commandFault("load", name, g.client.LoadModel(ctx, name, o))
}

// unloadModel unloads a model.
func (g *Gateway) unloadModel(ctx context.Context, name string) *fault {
	ctx, cancel := context.WithTimeout(ctx, loadMax)
	defer cancel()
	return commandFault("unload", name, g.client.UnloadModel(ctx, name))
}

// commandFault returns the fault for a failed command. Triton's clients compare the beginning of its text.
func commandFault(op, name string, err error) *fault {
	if err == nil {
		return nil
	}

	begin := "failed to " + op + " " + singleQuoted(name) + ", "
	var c *frontend.CommandError

	// Without an answer from the backends, the reason is how the call itself ended.
	switch {
	case errors.As(err, &c):
	case errors.Is(err, context.DeadlineExceeded):
		return refusalFault(http.StatusGatewayTimeout, codes.DeadlineExceeded, "model_control", begin+"it takes longer than the call may: the backends go on with it")
	case errors.Is(err, context.Canceled):
		return refusalFault(httpCanceled, codes.Canceled, "model_control", begin+"the caller left: the backends go on with it")
	default:
		return faultOf(err)
	}

	// With an answer, the code tells whose error it was. The backend's text may already begin with the same words.
	text := strings.TrimPrefix(c.Text, fmt.Sprintf("failed to %s %q: ", op, name))
	switch c.Code {
	case frontend.CommandUnknown:
		return refusalFault(http.StatusNotFound, codes.NotFound, "model_control", begin+"failed to poll from model repository: "+text)
	case frontend.CommandRefused:
		return refusalFault(http.StatusBadRequest, codes.FailedPrecondition, "model_control", text)
	case frontend.CommandLost:
		return refusalFault(http.StatusServiceUnavailable, codes.Unavailable, "model_control", begin+text)
	}
	return refusalFault(http.StatusBadRequest, codes.InvalidArgument, "model_control", begin+text)
}

// isControl reports whether a path loads, unloads or rolls back models, which only operators may do.
func isControl(path string) bool {
	last := path[strings.LastIndexByte(path, '/')+1:]
	return strings.HasPrefix(path, "/v2/repository/") && (last == "load" || last == "unload" || last == "rollback")
}

// controlRoutes registers the calls. A path may name a repository, as Triton's clients do; the name is ignored.
func (g *Gateway) controlRoutes(mux *http.ServeMux) {
	for _, path := range []string{"/v2/repository/models/{model}", "/v2/repository/{repository}/models/{model}"} {
		mux.HandleFunc("POST "+path+"/load", g.restLoad)
		mux.HandleFunc("POST "+path+"/unload", g.restUnload)
		mux.HandleFunc("POST "+path+"/rollback", g.restRollBack)
	}
}

func (g *Gateway) restLoad(w http.ResponseWriter, r *http.Request) {
	var o frontend.Override
	f := g.controlBody(w, r, func(s *jsonScanner, key string) *fault {
		switch path, isFile := strings.CutPrefix(key, filePrefix); {
		case key == "config":
			// The value is a JSON object, encoded as a string in the JSON body.
			text, err := configText([]byte(s.readString()))
			if s.err == nil && err != nil {
				return invalidFault("parameter config: %v", err)
			}
			o.Config = text
		case isFile:
			// JSON has no bytes: files are base64.
			content, err := base64.StdEncoding.DecodeString(s.readString())
			if s.err == nil && err != nil {
				return invalidFault("parameter %.40s: want base64: %v", key, err)
			}
			addFile(&o, path, content)

		default:
			return invalidFault("parameter %.40s: want config, or file:<version>/<file-name>", key)
		}
		return nil
	})

	if f == nil {
		f = g.loadModel(r.Context(), r.PathValue("model"), o)
	}
	writeControl(w, f)
}

func (g *Gateway) restUnload(w http.ResponseWriter, r *http.Request) {
	f := g.controlBody(w, r, func(s *jsonScanner, key string) *fault {
		if key != "unload_dependents" {
			return invalidFault("parameter %.40s: want unload_dependents", key)
		}
		s.readBoolean() // no model depends on another one
		return nil
	})
	if f == nil {
		f = g.unloadModel(r.Context(), r.PathValue("model"))
	}
	writeControl(w, f)
}

// restRollBack restores the weights of an earlier version of a model that learns.
func (g *Gateway) restRollBack(w http.ResponseWriter, r *http.Request) {
	version, name := "", r.PathValue("model")
	f := g.controlBody(w, r, func(s *jsonScanner, key string) *fault {
		if key != "version" {
			return invalidFault("parameter %.40s: want version", key)
		}
		version = strings.Clone(s.readString())
		return nil
	})
	if f == nil && (version == "" || len(version) > versionMax || !isNumber(version)) {
		f = invalidFault("parameter version: %.20q: want the number of an earlier version", version)
	}

	// As with a load, the answer is sent once the version is loaded.
	if f == nil {
		ctx, cancel := context.WithTimeout(r.Context(), loadMax)
		defer cancel()
		f = commandFault("roll back", name, g.client.RollBack(ctx, name, version))
	}
	writeControl(w, f)
}

// writeControl answers as Triton does: without a body on success.
func writeControl(w http.ResponseWriter, f *fault) {
	if f != nil {
		writeFault(w, f)
		return
	}
	w.WriteHeader(http.StatusOK)
}

// controlBody reads the parameters in a call's body; all are optional.
func (g *Gateway) controlBody(w http.ResponseWriter, r *http.Request, parameter func(s *jsonScanner, key string) *fault) *fault {
	body := scratches.Get().(*scratch)
	defer body.putBack()
	in := inferences.Get().(*inference)
	defer in.putBack()
	in.memory = &g.memory
	if f := g.readBody(w, r, in, body); f != nil {
		return f
	}

	// A load may take longer than the server's write timeout, which starts at the header.
	if err := http.NewResponseController(w).SetWriteDeadline(time.Now().Add(loadMax + answerTimeout)); err != nil {
		return faultOf(err)
	}

	if len(body.b) == 0 {
		return nil
	}

	s := &jsonScanner{text: body.b}
	s.eachMember(func(key string) {
		if key != "parameters" {
			s.skipAny()
			return
		}
		s.eachMember(func(key string) { s.refuse(parameter(s, strings.Clone(key))) })
	})

	return s.finish()
}

// RepositoryModelLoad loads a model.
func (s *grpcServer) RepositoryModelLoad(ctx context.Context, r *oip.RepositoryModelLoadRequest) (*oip.RepositoryModelLoadResponse, error) {
	var o frontend.Override

	// The member of the parameter that is set determines its type.
	for key, v := range r.Parameters {
		path, isFile := strings.CutPrefix(key, filePrefix)
		switch v := v.GetParameterChoice().(type) {
		case *oip.ModelRepositoryParameter_StringParam:
			if key == "config" {
				text, err := configText([]byte(v.StringParam))
				if err != nil {
					return nil, invalidFault("parameter config: %v", err).GRPCStatus().Err()
				}
				o.Config = text
				continue
			}

		case *oip.ModelRepositoryParameter_BytesParam:
			if isFile {
				addFile(&o, path, v.BytesParam)
				continue
			}
		}
		return nil, invalidFault("parameter %s: want config, as string_param, or file:<version>/<file-name>, as bytes_param", strconv.Quote(key[:min(len(key), 40)])).GRPCStatus().Err()
	}

	if f := s.g.loadModel(ctx, strings.Clone(r.ModelName), o); f != nil {
		return nil, f.GRPCStatus().Err()
	}
	return &oip.RepositoryModelLoadResponse{}, nil
}

// RepositoryModelUnload unloads a model.
func (s *grpcServer) RepositoryModelUnload(ctx context.Context, r *oip.RepositoryModelUnloadRequest) (*oip.RepositoryModelUnloadResponse, error) {
	if f := s.g.unloadModel(ctx, strings.Clone(r.ModelName)); f != nil {
		return nil, f.GRPCStatus().Err()
	}
	return &oip.RepositoryModelUnloadResponse{}, nil
}
