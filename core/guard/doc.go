// Package guard keeps strangers from taking what callers need, on the listeners that a process opens to them: it bounds
// connections, those that have shown no token apart, demands tokens, and refuses what foreign sites have a browser of this
// host send.
package guard
