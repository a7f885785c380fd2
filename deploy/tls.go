package deploy

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"path/filepath"
)

// PeerTLS returns the configuration between Downbeat's own parts, used for accepting and for
// connecting: both ends show a certificate from ca.crt, the end that is dialled one for Cluster.TLSName or else
// for the host. Nil when no directory is set.
func (c Config) PeerTLS() (*tls.Config, error) {
	if c.TLS == "" {
		return nil, nil
	}

	ca := filepath.Join(c.TLS, "ca.crt")
	pem, err := readBounded(ca)
	if err != nil {
		return nil, fmt.Errorf("tls: %w", err)
	}

	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("tls: %s: no PEM certificate in it", ca)
	}

	pair, err := tls.LoadX509KeyPair(filepath.Join(c.TLS, "tls.crt"), filepath.Join(c.TLS, "tls.key"))
	if err != nil {
		return nil, fmt.Errorf("tls: %s: %w", c.TLS, err)
	}

	// Parts are dialled and dial: one configuration serves both ends.
	return &tls.Config{
		MinVersion:   tls.VersionTLS13,
		ServerName:   c.Cluster.TLSName,
		Certificates: []tls.Certificate{pair},
		RootCAs:      roots,
		ClientCAs:    roots,
		ClientAuth:   tls.RequireAndVerifyClientCert,
	}, nil
}

// PublicTLS is PeerTLS for the gateway's listeners: callers show a token, not a certificate.
func (c Config) PublicTLS() (*tls.Config, error) {
	t, err := c.PeerTLS()
	if t != nil {
		// Each call made a value of its own, so this changes no other's.
		t.ClientAuth = tls.NoClientCert
	}
	return t, err
}
