package guard

import (
	"net"
	"net/http"
	"net/netip"
	"strings"
)

// RefuseForeignSites protects a loopback handler that requires no token from browsers on this host: a browser sends
// calls on behalf of any site. A call with a token needs no such protection, since browsers do not add tokens by
// themselves.
func RefuseForeignSites(next http.Handler) http.Handler {
	sites := http.NewCrossOriginProtection()
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		// DNS rebinding: a site that resolves its own name to this host could read every answer.
		if !isLocalHost(r.Host) {
			Refuse(w, http.StatusForbidden, "header host: must be localhost or an IP address where no token is demanded")
			return
		}

		// Browsers send forms, and scripts' calls with a form's content type, without asking this host for
		// permission.
		if sites.Check(r) != nil {
			Refuse(w, http.StatusForbidden, "header origin: must be this host's own where no token is demanded")
			return
		}
		next.ServeHTTP(w, r)
	})
}

// isLocalHost reports whether a Host header contains no name that somebody else may own. HTTP/1.0 may omit the
// header.
func isLocalHost(header string) bool {
	// Every call comes here, so avoid allocating errors for the usual hosts.
	host := header
	switch {
	case strings.HasPrefix(header, "["): // an IPv6 address without a port keeps its brackets
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
