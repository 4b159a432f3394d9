package pooler

import (
	"errors"
	"time"

	"go.uber.org/zap"

	"github.com/multipooler/multipooler/admin"
	"github.com/multipooler/multipooler/auth"
	"github.com/multipooler/multipooler/config"
	"github.com/multipooler/multipooler/eventloop"
)

// Reload is a configuration that was read again, or why it was refused.
type Reload struct {
	Config *config.Config // with what needs a restart as it is in force
	Err    error
}

// reloadCondition is the note in /readyz after a refused reload.
const reloadCondition = "config_reload_failed"

// reload takes over a new configuration and everything in files, or reports
// that the old one stays.
func (p *Pooler) reload(r Reload) {
	err := r.Err
	if err == nil {
		err = p.takeOver(r.Config)
	}
	p.reloadFailed.Store(err != nil)
	if err != nil {
		p.log.Error("reload failed, what was in force stays", zap.Error(err))
		p.state.Set(admin.Condition{Name: reloadCondition, Reason: "the configuration was refused when it was read again, the one before it stays in force; the log says why"})
		return
	}
	p.configLoaded.Store(time.Now().UnixMilli())
	p.state.Clear(reloadCondition)
	p.log.Info("configuration reloaded")
}

// takeOver changes nothing but certificates when it fails: each of those is
// replaced on its own.
func (p *Pooler) takeOver(cfg *config.Config) error {
	_, err := p.frontTLS.Reload()
	for _, t := range p.targets {
		_, terr := t.tls.Reload()
		err = errors.Join(err, terr)
	}
	users, uerr := loadUsers(cfg, p.users.Load())
	secrets := make([]*auth.Secret, len(p.targets))
	for i, t := range p.targets {
		var serr error
		secrets[i], serr = ownSecret(t.entry(cfg))
		err = errors.Join(err, serr)
	}
	if err = errors.Join(err, uerr); err != nil {
		return err
	}
	p.cfg.Store(cfg)
	p.users.Store(users)
	for i, t := range p.targets {
		t.live.Store(t.entry(cfg))
		t.self.Store(secrets[i])
	}
	w := p.workers[0]
	w.loop.Post(task(func(*eventloop.Loop) {
		for _, t := range p.targets {
			ops := w.takeOps()
			t.arb.Reconfigure(poolConfig(cfg, t.live.Load()), w.now(), &ops)
			w.run(ops)
		}
	}))
	return nil
}

// entry is what cfg says of the target.
func (t *target) entry(cfg *config.Config) *config.Target {
	for i := range cfg.Targets {
		if cfg.Targets[i].Name == t.cfg.Name {
			return &cfg.Targets[i]
		}
	}
	return t.cfg
}
