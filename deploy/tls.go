package deploy

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
)

// TLS returns the server's and the client's side; both nil when no certificate is set.
// With tls_ca, listeners demand a certificate from these roots and dialers accept no other.
func (c Config) TLS() (server, client *tls.Config, err error) {
	if c.TLSCert == "" && c.TLSCA == "" {
		return nil, nil, nil
	}
	client = &tls.Config{MinVersion: tls.VersionTLS13}
	if c.TLSCA != "" {
		pem, err := readBounded(c.TLSCA)
		if err != nil {
			return nil, nil, fmt.Errorf("tls_ca: %w", err)
		}
		client.RootCAs = x509.NewCertPool()
		if !client.RootCAs.AppendCertsFromPEM(pem) {
			return nil, nil, fmt.Errorf("tls_ca %s: no PEM certificate in it", c.TLSCA)
		}
	}
	if c.TLSCert == "" {
		return nil, client, nil
	}
	pair, err := tls.LoadX509KeyPair(c.TLSCert, c.TLSKey)
	if err != nil {
		return nil, nil, fmt.Errorf("tls_cert %s, tls_key %s: %w", c.TLSCert, c.TLSKey, err)
	}
	client.Certificates = []tls.Certificate{pair}
	server = &tls.Config{MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{pair}}
	if c.TLSCA != "" {
		server.ClientCAs, server.ClientAuth = client.RootCAs, tls.RequireAndVerifyClientCert
	}
	return server, client, nil
}
