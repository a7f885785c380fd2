package gateway

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/tap"

	"downbeat.dev/core/guard"
	"downbeat.dev/core/observe"
	"downbeat.dev/frontend/gateway/clients"
	"downbeat.dev/frontend/gateway/oip"
)

// authorizeCaller passes on a REST call only if its token opens its path: a client's token opens the API, the
// cluster's opens the operators' paths. Without a list of clients the cluster's token opens everything.
func (g *Gateway) authorizeCaller(next http.Handler) http.Handler {
	asOperator := guard.RequireToken(g.o.Token, observe.IsHealth, next)
	if g.o.Clients == nil {
		return asOperator
	}

	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		// The operators' paths need the cluster's token, also where clients have their own.
		if !isClients(r.URL.Path) {
			asOperator.ServeHTTP(w, r)
			return
		}

		token, _ := guard.BearerToken(r.Header.Get("Authorization"))
		client := g.o.Clients.Find(token)
		if client == nil {
			guard.RefuseToken(w, errClientToken)
			return
		}

		// The connection has shown a valid token: it no longer counts as a stranger's.
		guard.CallersConnection(r.Context()).Trust()
		next.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), clientKey{}, client)))
	})
}

// isClients reports whether a path belongs to the API for clients. The log and trace settings apply to the whole
// process and the set of loaded models to every client, so they do not.
func isClients(path string) bool {
	if observe.IsHealth(path) || path == "/v2/logging" || path == "/v2/downbeat/page" || path == observe.ExplainPath || path == observe.SessionsPath || path == observe.LearnersPath || observe.IsPlan(path) || isControl(path) || isCanary(path) || isTraceSetting(path) {
		return false
	}
	return path == "/v2" || strings.HasPrefix(path, "/v2/")
}

type clientKey struct{}

// clientOf returns the client that makes a call; nil where the gateway has no list of clients.
func clientOf(ctx context.Context) *clients.Client {
	if c := callOf(ctx); c != nil {
		return c.client
	}
	c, _ := ctx.Value(clientKey{}).(*clients.Client)
	return c
}

// operatorsCalls are the gRPC methods that change state that all clients share.
var operatorsCalls = map[string]bool{oip.GRPCInferenceService_LogSettings_FullMethodName: true, oip.GRPCInferenceService_TraceSetting_FullMethodName: true,
	oip.GRPCInferenceService_RepositoryModelLoad_FullMethodName: true, oip.GRPCInferenceService_RepositoryModelUnload_FullMethodName: true}

// authorizeRPC is authorizeCaller for a gRPC call.
func (g *Gateway) authorizeRPC(c *rpcCall, info *tap.Info) *fault {
	ofClients := g.o.Clients != nil && !operatorsCalls[info.FullMethodName]
	if strings.HasPrefix(info.FullMethodName, "/grpc.health.v1.Health/") || g.o.Token == "" && !ofClients {
		return nil
	}

	if !ofClients {
		if !bearsAny(info.Header, g.o.Token) {
			return refusalFault(http.StatusUnauthorized, codes.Unauthenticated, "unauthenticated", guard.TokenNeeded)
		}
		c.connection.Trust()
		return nil
	}

	token := ""
	if all := info.Header.Get("authorization"); len(all) > 0 {
		token, _ = guard.BearerToken(all[0])
	}
	if c.client = g.o.Clients.Find(token); c.client == nil {
		return refusalFault(http.StatusUnauthorized, codes.Unauthenticated, "unauthenticated", errClientToken)
	}
	c.connection.Trust()

	// Refuse a client that has used up its limits before its message takes memory.
	if info.FullMethodName == oip.GRPCInferenceService_ModelInfer_FullMethodName {
		return clientFault(c.client, c.client.CheckLimits(c.began))
	}
	return nil
}

// clientFault returns the fault for a client's refusal; nil: the client is not refused.
func clientFault(c *clients.Client, err error) *fault {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, clients.ErrRevoked):
		return refusalFault(http.StatusUnauthorized, codes.Unauthenticated, "unauthenticated", err.Error())
	case errors.Is(err, clients.ErrModel):
		return refusalFault(http.StatusForbidden, codes.PermissionDenied, "forbidden", "client "+c.Name+": "+err.Error())
	}
	return refusalFault(http.StatusTooManyRequests, codes.ResourceExhausted, "client_limit", "client "+c.Name+": "+err.Error())
}

const errClientToken = `header authorization: must be "Bearer" and a token of client_tokens_file`

// bearsAny reports whether a call's headers have the token.
func bearsAny(md metadata.MD, token string) bool {
	return slices.ContainsFunc(md.Get("authorization"), func(h string) bool { return guard.Bears(h, token) })
}
