// Package guard protects a process's listeners from strangers: it limits connections, with separate limits for those
// without a token, requires tokens, and refuses calls that foreign web sites make a local browser send.
package guard
