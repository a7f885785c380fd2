// Package family reads and generates the inputs of experiments with accuracy scaling: families of model variants with
// their latency on several kinds of devices (a Zoo), and requests for families over time (a Trace). It follows the
// public data of Proteus (Ahmad et al., ASPLOS '24): a table of measured latencies, a file of variants per family, a
// file of requests per family. It runs nothing.
package family
