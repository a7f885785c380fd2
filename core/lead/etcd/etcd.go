// Package etcd keeps the leader's record under one key of etcd.
package etcd

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"strconv"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"downbeat.dev/core/lead"
)

// Store is a lead.Store. The record's revision is the key's ModRevision.
type Store struct {
	client *clientv3.Client
	key    string
}

// Open returns the store of a key. It connects on first use, so etcd need not be running yet.
func Open(endpoints []string, key string, t *tls.Config) (*Store, error) {
	c, err := clientv3.New(clientv3.Config{Endpoints: endpoints, TLS: t, Logger: zap.NewNop(),
		DialKeepAliveTime: 2 * time.Second, DialKeepAliveTimeout: time.Second})
	if err != nil {
		return nil, fmt.Errorf("election: etcd: %w", err)
	}
	return &Store{c, key}, nil
}

// Get implements lead.Store. The read is linearizable: a majority of etcd's members agree on it.
func (s *Store) Get(ctx context.Context) (lead.Record, lead.Revision, error) {
	var r lead.Record
	got, err := s.client.Get(ctx, s.key)
	if err != nil {
		return r, "", fmt.Errorf("election: etcd: %w", err)
	}

	if len(got.Kvs) == 0 {
		return r, "", nil
	}

	if err := json.Unmarshal(got.Kvs[0].Value, &r); err != nil {
		return r, "", fmt.Errorf("election: etcd key %s: %w", s.key, err)
	}
	return r, toRevision(got.Kvs[0].ModRevision), nil
}

func toRevision(n int64) lead.Revision { return lead.Revision(strconv.FormatInt(n, 10)) }

// Swap implements lead.Store.
func (s *Store) Swap(ctx context.Context, old lead.Revision, to lead.Record) (lead.Revision, error) {
	at := int64(0) // revision of a missing key
	if old != "" {
		var err error
		if at, err = strconv.ParseInt(string(old), 10, 64); err != nil {
			return "", fmt.Errorf("election: revision %q: %w", old, err)
		}
	}

	value, err := json.Marshal(to)
	if err != nil {
		return "", err
	}

	// Compare and put are one transaction: of two candidates that read the same revision only one succeeds.
	done, err := s.client.Txn(ctx).If(clientv3.Compare(clientv3.ModRevision(s.key), "=", at)).Then(clientv3.OpPut(s.key, string(value))).Commit()
	if err != nil {
		return "", fmt.Errorf("election: etcd: %w", err)
	}
	if !done.Succeeded {
		return "", lead.ErrChanged
	}
	return toRevision(done.Header.Revision), nil
}

// Close implements lead.Store.
func (s *Store) Close() error { return s.client.Close() }
