package gateway

import (
	"context"
	"slices"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/reflection"
	"google.golang.org/grpc/status"

	"downbeat.dev/core/wire"
	"downbeat.dev/frontend/gateway/oip"
)

// grpcServer answers the gRPC service. ModelInfer and ModelStreamInfer bypass the generated code's
// message types: see leanCodec.
type grpcServer struct {
	oip.UnimplementedGRPCInferenceServiceServer
	g *Gateway
}

// newGRPC makes the server with its services registered.
func (g *Gateway) newGRPC(options ...grpc.ServerOption) *grpc.Server {
	options = append(options, grpc.ForceServerCodecV2(newLeanCodec()), grpc.MaxRecvMsgSize(int(g.o.BodyMax)),
		grpc.MaxSendMsgSize(int(g.o.BodyMax)), grpc.MaxConcurrentStreams(streamsMax), grpc.ConnectionTimeout(10*time.Second),
		grpc.NumStreamWorkers(streamGoroutines))
	s := grpc.NewServer(options...)
	desc := oip.GRPCInferenceService_ServiceDesc
	desc.Methods = slices.Clone(desc.Methods)
	for i := range desc.Methods {
		if desc.Methods[i].MethodName == "ModelInfer" {
			desc.Methods[i].Handler = modelInfer
		}
	}
	s.RegisterService(&desc, &grpcServer{g: g})
	healthpb.RegisterHealthServer(s, &health{g: g})
	reflection.Register(s)
	return s
}

// streamGoroutines serve streams and keep their grown stacks from call to call; more calls at a time start
// their own.
const streamGoroutines = 64

// streamsMax bounds the calls under way on one connection.
const streamsMax = 10_000

// modelInfer is the ModelInfer method over our own messages.
func modelInfer(srv any, ctx context.Context, decode func(any) error, around grpc.UnaryServerInterceptor) (any, error) {
	m := messages.Get().(*inferMessage)
	if err := decode(m); err != nil {
		m.release()
		return nil, status.Errorf(codes.InvalidArgument, "request: %v", err)
	}
	s := srv.(*grpcServer)
	call := func(ctx context.Context, _ any) (any, error) {
		r, f := s.g.grpcInfer(ctx, m)
		if f != nil {
			return nil, f.GRPCStatus().Err()
		}
		return r, nil
	}
	if around == nil {
		return call(ctx, m)
	}
	info := &grpc.UnaryServerInfo{Server: srv, FullMethod: oip.GRPCInferenceService_ModelInfer_FullMethodName}
	return around(ctx, m, info, call)
}

// grpcInfer checks and runs one call. The message is released with the reply; if there is none, here.
func (g *Gateway) grpcInfer(ctx context.Context, m *inferMessage) (*inferReply, *fault) {
	r, f := g.grpcServe(ctx, m)
	if f != nil {
		g.metrics.fault(m.name, f)
		m.release()
	}
	return r, f
}

func (g *Gateway) grpcServe(ctx context.Context, m *inferMessage) (*inferReply, *fault) {
	var f *fault
	in := &m.inference
	if in.model, f = g.model(m.name, m.version); f != nil {
		return nil, f
	}
	if f = m.settle(); f != nil {
		return nil, f
	}
	if f = in.arrange(); f != nil {
		return nil, f
	}
	if f = in.choose(); f != nil {
		return nil, f
	}
	a, f := g.run(ctx, in)
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
	return &oip.ServerReadyResponse{Ready: s.g.ready()}, nil
}

// ModelReady answers false for a model that is not there, as Triton does.
func (s *grpcServer) ModelReady(_ context.Context, r *oip.ModelReadyRequest) (*oip.ModelReadyResponse, error) {
	m := s.g.client.Model(r.Name, r.Version)
	return &oip.ModelReadyResponse{Ready: m != nil && m.Ready && s.g.client.Connected()}, nil
}

func (s *grpcServer) ServerMetadata(context.Context, *oip.ServerMetadataRequest) (*oip.ServerMetadataResponse, error) {
	return &oip.ServerMetadataResponse{Name: serverName, Version: s.g.o.Version, Extensions: extensions}, nil
}

func (s *grpcServer) ModelMetadata(_ context.Context, r *oip.ModelMetadataRequest) (*oip.ModelMetadataResponse, error) {
	m, f := s.g.model(r.Name, r.Version)
	if f != nil {
		return nil, f.GRPCStatus().Err()
	}
	return &oip.ModelMetadataResponse{Name: m.Name, Versions: s.g.versions(m.Name), Platform: m.Platform,
		Inputs: tensorMetadata(m.Inputs), Outputs: tensorMetadata(m.Outputs)}, nil
}

func tensorMetadata(ts []wire.Tensor) []*oip.ModelMetadataResponse_TensorMetadata {
	all := make([]*oip.ModelMetadataResponse_TensorMetadata, len(ts))
	for i, t := range ts {
		all[i] = &oip.ModelMetadataResponse_TensorMetadata{Name: t.Name, Datatype: t.Datatype, Shape: batchShape(t.Shape, -1)}
	}
	return all
}

// health is grpc.health.v1: serving while the gateway is ready.
type health struct {
	healthpb.UnimplementedHealthServer
	g *Gateway
}

func (h *health) status(service string) (*healthpb.HealthCheckResponse, error) {
	if service != "" && service != oip.GRPCInferenceService_ServiceDesc.ServiceName {
		return nil, status.Errorf(codes.NotFound, "service %q: must be empty or %q", service, oip.GRPCInferenceService_ServiceDesc.ServiceName)
	}
	r := &healthpb.HealthCheckResponse{Status: healthpb.HealthCheckResponse_NOT_SERVING}
	if h.g.ready() {
		r.Status = healthpb.HealthCheckResponse_SERVING
	}
	return r, nil
}

func (h *health) Check(_ context.Context, r *healthpb.HealthCheckRequest) (*healthpb.HealthCheckResponse, error) {
	return h.status(r.Service)
}

// Watch looks every half second and sends what changed.
func (h *health) Watch(r *healthpb.HealthCheckRequest, stream healthpb.Health_WatchServer) error {
	t := time.NewTicker(500 * time.Millisecond)
	defer t.Stop()
	last := healthpb.HealthCheckResponse_UNKNOWN
	for {
		now, err := h.status(r.Service)
		if err != nil {
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
