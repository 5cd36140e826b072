// SPDX-License-Identifier: Apache-2.0

package etcd

import (
	"context"
	"log/slog"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
)

// bridge makes a zap logger, which etcd requires, of a slog one. etcd logs much for its own
// developers: each level is lowered by one. Where etcd would end the process or panic, the logger
// calls fatal (nil: nothing) with the reason and the first error of the message, and ends the goroutine.
//
// ending reports whether etcd has begun to end; nil: never. From then on its warnings are lowered by two levels, to
// debug: etcd warns about each goroutine that it does not start any more and each request that it cancels. Why it ends
// was reported before, or it was closed. Errors stay what they are.
func bridge(log *slog.Logger, fatal func(why string, err error), ending func() bool) *zap.Logger {
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	hook := goexit{fatal}
	return zap.New(&core{h: log.Handler(), ending: ending}, zap.WithFatalHook(hook), zap.WithPanicHook(hook))
}

// goexit is what happens after a message of etcd's end.
type goexit struct{ fatal func(why string, err error) }

func (g goexit) OnWrite(e *zapcore.CheckedEntry, fields []zapcore.Field) {
	if g.fatal != nil {
		why, cause := e.Message, error(nil)
		for _, f := range fields {
			if err, ok := f.Interface.(error); ok && f.Type == zapcore.ErrorType {
				why += ": " + err.Error()
				if cause == nil {
					cause = err
				}
			}
		}
		g.fatal(why, cause)
	}
	zapcore.WriteThenGoexit.OnWrite(e, fields)
}

// core is a zapcore.Core over a slog handler.
type core struct {
	h      slog.Handler
	ending func() bool // nil: never
}

func level(l zapcore.Level) slog.Level {
	switch {
	case l <= zapcore.DebugLevel:
		return slog.LevelDebug - 4
	case l == zapcore.InfoLevel:
		return slog.LevelDebug
	case l == zapcore.WarnLevel:
		return slog.LevelInfo
	case l == zapcore.ErrorLevel:
		return slog.LevelWarn
	}
	return slog.LevelError
}

func attrs(fields []zapcore.Field) []slog.Attr {
	var as []slog.Attr
	for _, f := range fields {
		enc := zapcore.NewMapObjectEncoder()
		f.AddTo(enc)
		for k, v := range enc.Fields {
			as = append(as, slog.Any(k, v))
		}
	}
	return as
}

func (c *core) Enabled(l zapcore.Level) bool { return c.h.Enabled(context.Background(), level(l)) }

func (c *core) With(fields []zapcore.Field) zapcore.Core {
	return &core{c.h.WithAttrs(attrs(fields)), c.ending}
}

func (c *core) Check(e zapcore.Entry, ce *zapcore.CheckedEntry) *zapcore.CheckedEntry {
	if c.Enabled(e.Level) {
		return ce.AddCore(e, c)
	}
	return ce
}

// usual are complaints of every first start: the version of the files is not
// on disk yet when etcd looks for it, and is a moment later.
var usual = map[string]bool{"Failed to detect schema version": true, "failed to update storage version": true}

func (c *core) Write(e zapcore.Entry, fields []zapcore.Field) error {
	l := level(e.Level)
	if usual[e.Message] || e.Level == zapcore.WarnLevel && c.ending != nil && c.ending() {
		l = slog.LevelDebug
	}
	if !c.h.Enabled(context.Background(), l) {
		return nil
	}
	r := slog.NewRecord(e.Time, l, "etcd: "+e.Message, 0)
	r.AddAttrs(attrs(fields)...)
	return c.h.Handle(context.Background(), r)
}

func (c *core) Sync() error { return nil }
