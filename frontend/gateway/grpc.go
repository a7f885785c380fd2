package gateway

import (
	"context"
	"slices"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/experimental"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/reflection"
	"google.golang.org/grpc/status"

	"downbeat.dev/core/model"
	"downbeat.dev/core/observe/spans"
	"downbeat.dev/frontend"
	"downbeat.dev/frontend/gateway/oip"
)

// grpcServer implements the gRPC service. ModelInfer and ModelStreamInfer bypass the generated message types; see
// leanCodec.
type grpcServer struct {
	oip.UnimplementedGRPCInferenceServiceServer
	g *Gateway
}

// newGRPC creates the server and registers its services.
func (g *Gateway) newGRPC(options ...grpc.ServerOption) *grpc.Server {
	options = append(options, grpc.ForceServerCodecV2(newLeanCodec(g)), grpc.MaxRecvMsgSize(int(g.o.BodyMax)),
		grpc.MaxSendMsgSize(int(g.o.BodyMax)), grpc.MaxConcurrentStreams(streamsMax), grpc.ConnectionTimeout(headerTimeout),
		grpc.NumStreamWorkers(streamGoroutines), experimental.BufferPool(&g.memory),
		grpc.InTapHandle(g.admitCall), grpc.StreamInterceptor(g.watchArrivals),
		grpc.KeepaliveParams(keepalive.ServerParameters{MaxConnectionIdle: grpcIdle, Time: pingAfter, Timeout: pingTimeout}),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: 10 * time.Second, PermitWithoutStream: true}))

	s := grpc.NewServer(options...)

	// The generated handler decodes into generated messages, which copy tensors, so modelInfer replaces it.
	desc := oip.GRPCInferenceService_ServiceDesc
	desc.Methods = slices.Clone(desc.Methods)
	for i := range desc.Methods {
		if desc.Methods[i].MethodName == "ModelInfer" {
			desc.Methods[i].Handler = modelInfer
		}
	}

	desc, healthDesc := asStreams(desc), asStreams(healthpb.Health_ServiceDesc)
	s.RegisterService(&desc, &grpcServer{g: g})
	s.RegisterService(&healthDesc, &health{g: g})
	reflection.Register(s)
	return s
}

// streamGoroutines serve streams and keep their grown stacks between calls; calls beyond them start their own
// goroutines.
const streamGoroutines = 64

// streamsMax bounds the calls under way on one connection.
const streamsMax = 1_000

// A gRPC connection without calls is closed after grpcIdle. A silent connection is pinged after pingAfter and closed
// if no answer arrives within pingTimeout.
const (
	grpcIdle    = 5 * time.Minute
	pingAfter   = 30 * time.Second
	pingTimeout = 10 * time.Second
)

// modelInfer is the ModelInfer method with inferMessage and inferReply as its messages.
func modelInfer(srv any, ctx context.Context, decode func(any) error, _ grpc.UnaryServerInterceptor) (any, error) {
	g := srv.(*grpcServer).g
	m := messages.Get().(*inferMessage)
	m.memory, m.reply.call = &g.memory, callOf(ctx)

	if err := decode(m); err != nil {
		m.releaseMessage()
		return nil, err
	}

	r, f := g.grpcInfer(ctx, m)
	if f != nil {
		return nil, f.GRPCStatus().Err()
	}
	return r, nil
}

// grpcInfer checks and runs one call. The reply releases the message; without a reply, grpcInfer does.
func (g *Gateway) grpcInfer(ctx context.Context, m *inferMessage) (*inferReply, *fault) {
	if g.o.Tracer != nil {
		ctx, m.inference.span = spans.Begin(ctx, g.o.Tracer, g.o.TraceRate, startOf(ctx), headersOf(ctx))
		m.inference.tellCaller(ctx)
	}

	r, f := g.grpcServe(ctx, m)
	m.inference.endSpan(m.name, f)
	g.logCall(ctx, "grpc", m.name, &m.inference, headersOf(ctx).Get("traceparent"), f)

	// A fault's text is a copy, so nothing points into the message now.
	if f != nil {
		g.metrics.countFault(m.name, f)
		m.releaseMessage()
	}
	return r, f
}

func (g *Gateway) grpcServe(ctx context.Context, m *inferMessage) (*inferReply, *fault) {
	if m.fault != nil {
		return nil, m.fault
	}

	var f *fault

	in := &m.inference
	if in.model, f = g.resolveModel(ctx, m.name, m.version); f != nil {
		return nil, f
	}

	in.regions, in.wanted = &g.regions, m.version
	if f = m.resolveContents(); f != nil {
		return nil, f
	}

	g.chooseVersion(in)
	if f = g.chooseClass(ctx, in); f != nil {
		return nil, f
	}
	if f = in.arrangeInputs(); f != nil {
		return nil, f
	}
	if f = in.chooseOutputs(); f != nil {
		return nil, f
	}

	a, f := g.runCall(ctx, in)
	if f != nil {
		return nil, f
	}
	m.reply.answer = a
	return &m.reply, nil
}

func (s *grpcServer) ServerLive(context.Context, *oip.ServerLiveRequest) (*oip.ServerLiveResponse, error) {
	return &oip.ServerLiveResponse{Live: true}, nil
}

func (s *grpcServer) ServerReady(context.Context, *oip.ServerReadyRequest) (*oip.ServerReadyResponse, error) {
	return &oip.ServerReadyResponse{Ready: s.g.isReady()}, nil
}

// ModelReady answers false for an unknown model, as Triton does.
func (s *grpcServer) ModelReady(ctx context.Context, r *oip.ModelReadyRequest) (*oip.ModelReadyResponse, error) {
	c := clientOf(ctx)
	if f := clientFault(c, c.CheckModel(r.Name)); f != nil {
		return nil, f.GRPCStatus().Err()
	}
	m := s.g.findModel(r.Name, r.Version)
	return &oip.ModelReadyResponse{Ready: m != nil && m.Ready && s.g.client.Connected()}, nil
}

func (s *grpcServer) ServerMetadata(context.Context, *oip.ServerMetadataRequest) (*oip.ServerMetadataResponse, error) {
	return &oip.ServerMetadataResponse{Name: s.g.o.Name, Version: s.g.o.Version, Extensions: s.g.listExtensions()}, nil
}

func (s *grpcServer) ModelMetadata(ctx context.Context, r *oip.ModelMetadataRequest) (*oip.ModelMetadataResponse, error) {
	m, f := s.g.resolveModel(ctx, r.Name, r.Version)
	if f != nil {
		return nil, f.GRPCStatus().Err()
	}
	return &oip.ModelMetadataResponse{Name: m.Name, Versions: s.g.listVersions(m.Name), Platform: m.Platform,
		Inputs: tensorMetadata(m, m.Inputs), Outputs: tensorMetadata(m, m.Outputs)}, nil
}

func tensorMetadata(m *frontend.Model, ts []model.Tensor) []*oip.ModelMetadataResponse_TensorMetadata {
	all := make([]*oip.ModelMetadataResponse_TensorMetadata, len(ts))
	for i, t := range ts {
		all[i] = &oip.ModelMetadataResponse_TensorMetadata{Name: t.Name, Datatype: string(t.Datatype), Shape: modelShape(m, &t)}
		if t.Picture != nil {
			all[i].Parameters = map[string]*oip.InferParameter{pictureKey: {ParameterChoice: &oip.InferParameter_StringParam{StringParam: pictureTypes}}}
		}
	}
	return all
}

// health implements grpc.health.v1: serving while the gateway is ready.
type health struct {
	healthpb.UnimplementedHealthServer
	g *Gateway
}

func (h *health) statusOf(service string) (*healthpb.HealthCheckResponse, error) {
	if service != "" && service != oip.GRPCInferenceService_ServiceDesc.ServiceName {
		return nil, status.Errorf(codes.NotFound, "service %q: must be empty or %q", service, oip.GRPCInferenceService_ServiceDesc.ServiceName)
	}

	// The named service has the status of the whole server, as the protocol defines it.
	r := &healthpb.HealthCheckResponse{Status: healthpb.HealthCheckResponse_NOT_SERVING}
	if h.g.isReady() {
		r.Status = healthpb.HealthCheckResponse_SERVING
	}
	return r, nil
}

func (h *health) Check(_ context.Context, r *healthpb.HealthCheckRequest) (*healthpb.HealthCheckResponse, error) {
	return h.statusOf(r.Service)
}

// Watch checks every half second and sends changes.
func (h *health) Watch(r *healthpb.HealthCheckRequest, stream healthpb.Health_WatchServer) error {
	// Nothing signals a change of readiness, so poll it.
	t := time.NewTicker(500 * time.Millisecond)
	defer t.Stop()
	last := healthpb.HealthCheckResponse_UNKNOWN
	for {
		now, err := h.statusOf(r.Service)
		if err != nil {
			// For an unknown service grpc.health.v1 requires a status here; only Check returns an error.
			now = &healthpb.HealthCheckResponse{Status: healthpb.HealthCheckResponse_SERVICE_UNKNOWN}
		}

		if now.Status != last {
			if err := stream.Send(now); err != nil {
				return err
			}
			last = now.Status
		}

		select {
		case <-stream.Context().Done():
			return status.FromContextError(stream.Context().Err()).Err()
		case <-h.g.closing:
			return status.Error(codes.Unavailable, "the gateway is closing")
		case <-t.C:
		}
	}
}
