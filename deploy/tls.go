package deploy

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
)

// TLS returns the configuration between Downbeat's own parts, used for accepting and for
// connecting: both ends show a certificate from tls_ca. Nil when no certificate is set.
func (c Config) TLS() (*tls.Config, error) {
	if c.TLSCert == "" {
		return nil, nil
	}
	pem, err := readBounded(c.TLSCA)
	if err != nil {
		return nil, fmt.Errorf("tls_ca: %w", err)
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("tls_ca %s: no PEM certificate in it", c.TLSCA)
	}
	pair, err := tls.LoadX509KeyPair(c.TLSCert, c.TLSKey)
	if err != nil {
		return nil, fmt.Errorf("tls_cert %s, tls_key %s: %w", c.TLSCert, c.TLSKey, err)
	}
	return &tls.Config{
		MinVersion:   tls.VersionTLS13,
		Certificates: []tls.Certificate{pair},
		RootCAs:      roots,
		ClientCAs:    roots,
		ClientAuth:   tls.RequireAndVerifyClientCert,
	}, nil
}

// PublicTLS is TLS for the gateway's listeners: callers show a token, not a certificate.
func (c Config) PublicTLS() (*tls.Config, error) {
	t, err := c.TLS()
	if t != nil {
		t.ClientAuth = tls.NoClientCert
	}
	return t, err
}
