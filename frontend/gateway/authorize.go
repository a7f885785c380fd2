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

// authorizeCaller lets a REST call through whose token opens its path: a client's the API, the cluster's what operators
// need. Where no clients are told apart, the cluster's opens all.
func (g *Gateway) authorizeCaller(next http.Handler) http.Handler {
	asOperator := guard.RequireToken(g.o.Token, observe.IsHealth, next)
	if g.o.Clients == nil {
		return asOperator
	}

	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		// What operators need takes the cluster's token, also where clients have theirs.
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

		// Its connection has shown a token: it is no stranger's any more.
		guard.CallersConnection(r.Context()).Trust()
		next.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), clientKey{}, client)))
	})
}

// isClients tells whether a path is of the API that clients call. The log's and the traces'
// settings are the whole process's, and what is loaded is everybody's.
func isClients(path string) bool {
	if observe.IsHealth(path) || path == "/v2/logging" || path == "/v2/downbeat/page" || path == observe.ExplainPath || path == observe.SessionsPath || path == observe.LearnersPath || observe.IsPlan(path) || isControl(path) || isCanary(path) || isTraceSetting(path) {
		return false
	}
	return path == "/v2" || strings.HasPrefix(path, "/v2/")
}

type clientKey struct{}

// clientOf is who makes a call; nil where no clients are told apart.
func clientOf(ctx context.Context) *clients.Client {
	if c := callOf(ctx); c != nil {
		return c.client
	}
	c, _ := ctx.Value(clientKey{}).(*clients.Client)
	return c
}

// operatorsCalls are those of gRPC that change what all clients have.
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

	// A client that has used up what it may is refused before its message takes memory.
	if info.FullMethodName == oip.GRPCInferenceService_ModelInfer_FullMethodName {
		return clientFault(c.client, c.client.CheckLimits(c.began))
	}
	return nil
}

// clientFault is why a client is refused; nil: it is not.
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

// bearsAny tells whether a call's headers have the token.
func bearsAny(md metadata.MD, token string) bool {
	return slices.ContainsFunc(md.Get("authorization"), func(h string) bool { return guard.Bears(h, token) })
}
