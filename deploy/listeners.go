package deploy

import (
	"fmt"
	"net"
	"slices"
)

type listener struct{ field, addr string }

func (c Config) listeners() []listener {
	return []listener{{"listen", c.Listen}, {"http", c.HTTP}, {"grpc", c.GRPC}, {"data", c.Data}}
}

func checkAddress(addr string) error {
	_, port, err := net.SplitHostPort(addr)
	if err == nil {
		_, err = net.LookupPort("tcp", port)
	}
	if err != nil {
		return refusedValue(addr, "host:port, the port from 0 to 65535")
	}
	return nil
}

// CheckListener refuses an invalid address, and an address beyond loopback without a token file. The error names the
// field.
func (c Config) CheckListener(field, addr string) error {
	if err := c.checkListener(addr); err != nil {
		return fmt.Errorf("config: %s: %w", field, err)
	}
	return nil
}

func (c *Config) checkListener(addr string) error {
	if err := checkAddress(addr); err != nil {
		return err
	}

	// Beyond loopback anyone could connect, so the parts must authenticate with a secret.
	if !isLoopback(addr) && c.TokenFile == "" {
		return fmt.Errorf("%q leaves this host: set token_file (and tls) as well", addr)
	}
	return nil
}

// Exposed returns the names of the listeners in fields that other hosts can reach. metrics is the separate address
// for metrics; empty: none.
func (c Config) Exposed(fields []string, metrics string) []string {
	var all []string
	for _, l := range c.listeners() {
		if slices.Contains(fields, l.field) && l.addr != "" && !isLoopback(l.addr) {
			all = append(all, l.field)
		}
	}
	if metrics != "" && !isLoopback(metrics) {
		all = append(all, "metrics")
	}
	return all
}

func isLoopback(addr string) bool {
	host, _, err := net.SplitHostPort(addr)
	ip := net.ParseIP(host)

	// An empty host means all addresses of this machine.
	return err == nil && (host == "localhost" || ip != nil && ip.IsLoopback())
}
