// Package worker runs frames of applications on one worker of this host, as Rim's workers do (Rim §3.3): the modules' models lie on several
// executors that run at once, every request runs alone, and nothing is dropped. It is what Rim profiles, so that its limits can be
// measured with real models. Downbeat serves otherwise.
package worker
