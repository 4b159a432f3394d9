package admin

import (
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"html/template"
	"net"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"go.uber.org/zap"
)

// Limits of the HTTP server. It serves probes and scrapes, a handful of small
// requests at a time.
const (
	httpHeaderTimeout = 5 * time.Second
	httpReadTimeout   = 10 * time.Second
	httpWriteTimeout  = 30 * time.Second
	httpIdleTimeout   = 60 * time.Second
	httpStopTimeout   = 5 * time.Second
	httpMaxHeader     = 16 << 10
	httpMaxConns      = 256
	maxScrapes        = 4   // at the same time; more get 503
	maxPageRows       = 200 // pools on the status page
)

// HTTPConfig configures the HTTP side.
type HTTPConfig struct {
	State    *State
	Source   Source
	Registry *prometheus.Registry // from NewRegistry
	Version  string
	Log      *zap.Logger
	// Now is the clock, nil = time.Now.
	Now func() time.Time
}

// HTTP serves /metrics, the probes and the status page. It has no
// authentication and tells no secrets; names of users and databases are on
// the status page and in /metrics.
type HTTP struct {
	cfg     HTTPConfig
	started time.Time
	mux     *http.ServeMux
}

// NewHTTP makes the handlers. Run serves them.
func NewHTTP(cfg HTTPConfig) *HTTP {
	if cfg.Log == nil {
		cfg.Log = zap.NewNop()
	}
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	h := &HTTP{cfg: cfg, started: cfg.Now(), mux: http.NewServeMux()}
	errorLog := zap.NewStdLog(cfg.Log)
	h.mux.Handle("GET /metrics", promhttp.InstrumentMetricHandler(cfg.Registry,
		promhttp.HandlerFor(cfg.Registry, promhttp.HandlerOpts{
			ErrorLog:            errorLog,
			ErrorHandling:       promhttp.ContinueOnError, // the other metrics are worth having
			MaxRequestsInFlight: maxScrapes,
			Timeout:             httpWriteTimeout / 2,
		})))
	h.mux.HandleFunc("GET /livez", h.livez)
	h.mux.HandleFunc("GET /readyz", h.readyz)
	h.mux.HandleFunc("GET /startupz", h.startupz)
	h.mux.HandleFunc("GET /{$}", h.status)
	return h
}

// Handler is the handler of all paths.
func (h *HTTP) Handler() http.Handler { return h.mux }

// Run serves on ln until ctx ends, then lets running requests finish for a
// moment. It owns ln and every goroutine of the server. Probes must be
// answered while the process drains: end ctx last.
func (h *HTTP) Run(ctx context.Context, ln net.Listener) error {
	server := &http.Server{
		Handler:           h.mux,
		ReadHeaderTimeout: httpHeaderTimeout,
		ReadTimeout:       httpReadTimeout,
		WriteTimeout:      httpWriteTimeout,
		IdleTimeout:       httpIdleTimeout,
		MaxHeaderBytes:    httpMaxHeader,
		ErrorLog:          zap.NewStdLog(h.cfg.Log),
	}
	stopped := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(stopped)
		grace, cancel := context.WithTimeout(context.WithoutCancel(ctx), httpStopTimeout)
		defer cancel()
		if server.Shutdown(grace) != nil {
			_ = server.Close()
		}
	})
	err := server.Serve(newLimitListener(ln, httpMaxConns))
	if !stop() {
		<-stopped
	}
	if errors.Is(err, http.ErrServerClosed) {
		return nil
	}
	_ = server.Close()
	return fmt.Errorf("serve http: %w", err)
}

// livez says that the process answers. It never looks at a database: a dead
// one must not restart the proxy.
func (h *HTTP) livez(w http.ResponseWriter, _ *http.Request) {
	writeJSON(w, http.StatusOK, map[string]any{"live": true})
}

// probe is the body of /readyz and /startupz.
type probe struct {
	Ready   *bool    `json:"ready,omitempty"`
	Started *bool    `json:"started,omitempty"`
	Reasons []Reason `json:"reasons"`
	Notes   []Reason `json:"notes,omitempty"`
}

func (h *HTTP) readyz(w http.ResponseWriter, _ *http.Request) {
	s := h.cfg.State.Status()
	writeJSON(w, probeCode(s.Ready()), probe{Ready: new(s.Ready()), Reasons: atLeastEmpty(s.NotReady), Notes: s.Notes})
}

func (h *HTTP) startupz(w http.ResponseWriter, _ *http.Request) {
	s := h.cfg.State.Status()
	writeJSON(w, probeCode(s.Started()), probe{Started: new(s.Started()), Reasons: atLeastEmpty(s.NotStarted)})
}

func probeCode(good bool) int {
	if good {
		return http.StatusOK
	}
	return http.StatusServiceUnavailable
}

// atLeastEmpty makes [] of what JSON would print as null.
func atLeastEmpty(r []Reason) []Reason {
	if r == nil {
		return []Reason{}
	}
	return r
}

func writeJSON(w http.ResponseWriter, code int, body any) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(body) // the client is gone, nobody to tell
}

//go:embed status.html
var statusHTML string

var statusPage = template.Must(template.New("status").Parse(statusHTML))

// statusView is what the status page shows.
type statusView struct {
	Version string
	Word    string
	Uptime  time.Duration
	Reasons []Reason
	Notes   []Reason
	Slots   Slots
	Pools   []PoolRow
	Hidden  int // pools that did not fit
	Totals  struct {
		Clients, Waiting, Servers int
	}
}

func (h *HTTP) status(w http.ResponseWriter, _ *http.Request) {
	s := h.cfg.State.Status()
	v := statusView{
		Version: h.cfg.Version,
		Word:    s.Word(),
		Uptime:  h.cfg.Now().Sub(h.started).Truncate(time.Second),
		Reasons: s.NotReady,
		Notes:   s.Notes,
		Slots:   h.cfg.Source.Totals().Slots,
		Pools:   sortedPools(h.cfg.Source.Pools()),
	}
	for i := range v.Pools {
		p := &v.Pools[i]
		v.Totals.Clients += p.clients()
		v.Totals.Waiting += p.ClientsWaiting
		v.Totals.Servers += p.servers()
	}
	if len(v.Pools) > maxPageRows {
		v.Hidden = len(v.Pools) - maxPageRows
		v.Pools = v.Pools[:maxPageRows]
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.Header().Set("Cache-Control", "no-store")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.Header().Set("Content-Security-Policy", "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'")
	if err := statusPage.Execute(w, v); err != nil {
		h.cfg.Log.Debug("status page was not sent", zap.Error(err))
	}
}
