package session

import (
	"encoding/json"
)

// move turns the session into JSON and back.
func (c *client) move() {
	st, ok := c.sess.Detachable()
	if !ok {
		c.w.print("cannot be moved")
		return
	}
	text, err := json.Marshal(st)
	if err != nil {
		c.w.t.Fatal(err)
	}
	var back State
	if err := json.Unmarshal(text, &back); err != nil {
		c.w.t.Fatal(err)
	}
	c.sess = New(Config{State: back, Host: c, Settings: c.w.interns.Intern(back.Startup)})
	c.redeliver = true
	c.w.pump()
}
