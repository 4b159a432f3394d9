package differential

import (
	"bytes"
	"encoding/binary"
	"fmt"
)

// firstUserOID is the first object id that a database hands out itself; the
// same table has another one in each database (PostgreSQL: FirstNormalObjectId).
const firstUserOID = 16384

// reply is one backend message with what may differ taken out of it.
type reply struct {
	kind byte // 0 is the end of the connection
	body []byte
}

// normalise makes a message comparable, in place:
//   - RowDescription: ids of user tables become one and the same;
//   - NotificationResponse: the sender's process id becomes 0.
//
// Everything else must be equal, the file, line and routine of an error included.
func normalise(r reply) reply {
	switch r.kind {
	case 'T':
		b := r.body
		if len(b) < 2 {
			return r
		}
		for b = b[2:]; ; {
			end := bytes.IndexByte(b, 0)
			if end < 0 || len(b) < end+19 {
				return r
			}
			b = b[end+1:]
			if binary.BigEndian.Uint32(b) >= firstUserOID {
				binary.BigEndian.PutUint32(b, firstUserOID)
			}
			b = b[18:]
		}
	case 'A':
		if len(r.body) >= 4 {
			binary.BigEndian.PutUint32(r.body, 0)
		}
	}
	return r
}

func (r reply) equal(o reply) bool { return r.kind == o.kind && bytes.Equal(r.body, o.body) }

var replyNames = map[byte]string{
	0: "(connection closed)", '1': "ParseComplete", '2': "BindComplete", '3': "CloseComplete",
	'A': "NotificationResponse", 'C': "CommandComplete", 'D': "DataRow", 'E': "ErrorResponse",
	'G': "CopyInResponse", 'H': "CopyOutResponse", 'I': "EmptyQueryResponse", 'N': "NoticeResponse",
	'S': "ParameterStatus", 'T': "RowDescription", 'V': "FunctionCallResponse", 'Z': "ReadyForQuery",
	'c': "CopyDone", 'd': "CopyData", 'n': "NoData", 's': "PortalSuspended", 't': "ParameterDescription",
}

func (r reply) String() string {
	name := replyNames[r.kind]
	if name == "" {
		name = fmt.Sprintf("message %q", r.kind)
	}
	if len(r.body) == 0 {
		return name
	}
	const most = 200
	if len(r.body) > most {
		return fmt.Sprintf("%s %q and %d bytes more", name, r.body[:most], len(r.body)-most)
	}
	return fmt.Sprintf("%s %q", name, r.body)
}
