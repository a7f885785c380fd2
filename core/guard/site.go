package guard

import (
	"net"
	"net/http"
	"net/netip"
	"strings"
)

// RefuseForeignSites guards a handler that demands no token, on loopback, against the browsers of this host: they send
// what any site tells them to. A call that carries a token needs no such guard, for no browser adds it by itself.
func RefuseForeignSites(next http.Handler) http.Handler {
	sites := http.NewCrossOriginProtection()
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		// A site that lets its own name lead to this host reads every answer as its own (DNS rebinding).
		if !isLocalHost(r.Host) {
			Refuse(w, http.StatusForbidden, "header host: must be localhost or an IP address where no token is demanded")
			return
		}

		// A form of a site, or a script's call with a content type that a form may have, is sent without the site being
		// asked whether it may.
		if sites.Check(r) != nil {
			Refuse(w, http.StatusForbidden, "header origin: must be this host's own where no token is demanded")
			return
		}
		next.ServeHTTP(w, r)
	})
}

// isLocalHost tells whether a Host header has no name that somebody else may own. HTTP/1.0 needs none.
func isLocalHost(header string) bool {
	// Every call is asked this, so that no error, which takes memory, is made for the hosts that nearly all name.
	host := header
	switch {
	case strings.HasPrefix(header, "["): // an IPv6 address; without a port it still has its brackets
		if h, _, err := net.SplitHostPort(header); err == nil {
			host = h
		}
		host = strings.TrimSuffix(strings.TrimPrefix(host, "["), "]")
	case strings.Count(header, ":") == 1:
		host, _, _ = strings.Cut(header, ":")
	}

	if host == "" || strings.EqualFold(host, "localhost") {
		return true
	}
	_, err := netip.ParseAddr(host)
	return err == nil
}
