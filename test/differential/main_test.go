package differential

import (
	"testing"

	"go.uber.org/goleak"

	"github.com/multipooler/multipooler/test/pgtest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(pgtest.StopAfter(m)) }
