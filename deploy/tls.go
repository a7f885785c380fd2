package deploy

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"path/filepath"
)

// PeerTLS returns the configuration between Downbeat's own parts, for listening and dialling: both ends present a
// certificate signed by ca.crt, and the listening end's is for Cluster.TLSName, or else for the host. It returns nil
// if no directory is set.
func (c Config) PeerTLS() (*tls.Config, error) {
	if c.TLS == "" {
		return nil, nil
	}

	roots, err := c.authority()
	if err != nil {
		return nil, err
	}

	pair, err := tls.LoadX509KeyPair(filepath.Join(c.TLS, "tls.crt"), filepath.Join(c.TLS, "tls.key"))
	if err != nil {
		return nil, fmt.Errorf("tls: %s: %w", c.TLS, err)
	}

	// Parts dial and are dialled: one configuration serves both ends.
	return &tls.Config{
		MinVersion:   tls.VersionTLS13,
		ServerName:   c.Cluster.TLSName,
		Certificates: []tls.Certificate{pair},
		RootCAs:      roots,
		ClientCAs:    roots,
		ClientAuth:   tls.RequireAndVerifyClientCert,
	}, nil
}

// authority reads the certificate that signs those of all parts.
func (c Config) authority() (*x509.CertPool, error) {
	ca := filepath.Join(c.TLS, "ca.crt")
	pem, err := readBounded(ca)
	if err != nil {
		return nil, fmt.Errorf("tls: %w", err)
	}

	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("tls: %s: no PEM certificate in it", ca)
	}
	return roots, nil
}

// CallerTLS is PeerTLS for callers of the gateway's listeners, who need no certificate.
func (c Config) CallerTLS() (*tls.Config, error) {
	t := &tls.Config{MinVersion: tls.VersionTLS12, ServerName: c.Cluster.TLSName}
	if c.TLS == "" {
		return t, nil // a proxy with a public certificate, say
	}

	var err error
	t.RootCAs, err = c.authority()
	return t, err
}

// PublicTLS is PeerTLS for the gateway's listeners: callers present a token instead of a certificate.
func (c Config) PublicTLS() (*tls.Config, error) {
	t, err := c.PeerTLS()
	if t != nil {
		// PeerTLS returned a new value, so this changes no other one.
		t.ClientAuth = tls.NoClientCert
	}
	return t, err
}
