//go:build race

package pooler

const raceEnabled = true
