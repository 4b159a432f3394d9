package main

import (
	"io"
	"os"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"golang.org/x/sys/unix"

	"github.com/multipooler/multipooler/config"
)

// isTerminal says whether a person reads f.
func isTerminal(f *os.File) bool {
	_, err := unix.IoctlGetTermios(int(f.Fd()), unix.TCGETS)
	return err == nil
}

// newLogger builds the process's logger on w. The returned level can be changed
// while it is in use, by a reload.
func newLogger(c config.Log, w io.Writer, terminal bool) (*zap.Logger, zap.AtomicLevel) {
	level := zap.NewAtomicLevel()
	setLevel(level, c.Level)
	enc := zap.NewProductionEncoderConfig()
	enc.EncodeTime = zapcore.RFC3339NanoTimeEncoder
	var encoder zapcore.Encoder
	if c.Format == config.LogConsole || c.Format == "" && terminal {
		enc.EncodeTime = zapcore.TimeEncoderOfLayout("15:04:05.000")
		enc.EncodeDuration = zapcore.StringDurationEncoder
		enc.EncodeLevel = zapcore.CapitalLevelEncoder
		encoder = zapcore.NewConsoleEncoder(enc)
	} else {
		encoder = zapcore.NewJSONEncoder(enc)
	}
	out := zapcore.Lock(zapcore.AddSync(w))
	return zap.New(zapcore.NewCore(encoder, out, level), zap.ErrorOutput(out)), level
}

// setLevel takes a validated name; anything else leaves the level as it is.
func setLevel(level zap.AtomicLevel, name string) {
	if l, err := zapcore.ParseLevel(name); err == nil {
		level.SetLevel(l)
	}
}
