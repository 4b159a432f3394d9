//go:build !race

package mp

// RaceDetector: the tests run without it, and so does the process.
const RaceDetector = false
