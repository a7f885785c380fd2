// Package worker runs frames of applications on one worker of this host, as Rim's workers do (Rim §3.3): several
// executors with the modules' models run concurrently, every request runs alone, and nothing is dropped. Rim profiles
// such workers, so the package measures their limits with real models. Downbeat itself serves differently.
package worker
