package apiserver

import (
	"os"
	"path/filepath"
	"syscall"
)

// WriteAccount writes the service account that pods of the server find into a directory.
func (s *Server) WriteAccount(dir string) error {
	for name, text := range map[string][]byte{"ca.crt": s.CA, "token": []byte(s.Token)} {
		if err := os.WriteFile(filepath.Join(dir, name), text, 0o600); err != nil {
			return err
		}
	}
	return nil
}

// MountAccount puts a service account where pods have theirs, below a /run that is this process's own: it has a mount namespace, and root's rights.
func MountAccount(account string) error {
	const secrets = "/run/secrets/kubernetes.io"

	if err := syscall.Mount("tmpfs", "/run", "tmpfs", 0, ""); err != nil {
		return os.NewSyscallError("mount", err)
	}
	if err := os.MkdirAll(secrets, 0o755); err != nil {
		return err
	}
	return os.Symlink(account, filepath.Join(secrets, "serviceaccount"))
}
