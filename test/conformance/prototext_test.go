package conformance

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"

	"google.golang.org/protobuf/reflect/protoreflect"
)

// longest is how long a string may be to be written out.
const longest = 200

// leftOut is what differs from one etcd to another.
var leftOut = map[protoreflect.FullName]bool{
	"etcdserverpb.ResponseHeader.cluster_id": true,
	"etcdserverpb.ResponseHeader.member_id":  true,
	"etcdserverpb.ResponseHeader.raft_term":  true,

	"etcdserverpb.Member.ID":         true,
	"etcdserverpb.Member.name":       true,
	"etcdserverpb.Member.peerURLs":   true,
	"etcdserverpb.Member.clientURLs": true,

	"etcdserverpb.StatusResponse.version":          true,
	"etcdserverpb.StatusResponse.storageVersion":   true,
	"etcdserverpb.StatusResponse.dbSize":           true,
	"etcdserverpb.StatusResponse.dbSizeInUse":      true,
	"etcdserverpb.StatusResponse.dbSizeQuota":      true,
	"etcdserverpb.StatusResponse.leader":           true,
	"etcdserverpb.StatusResponse.raftIndex":        true,
	"etcdserverpb.StatusResponse.raftTerm":         true,
	"etcdserverpb.StatusResponse.raftAppliedIndex": true,
}

var manyBytes = regexp.MustCompile(`"<(\d+) bytes>"`)

// expand writes out "<N bytes>".
func expand(text string) string {
	return manyBytes.ReplaceAllStringFunc(text, func(found string) string {
		n, err := strconv.Atoi(manyBytes.FindStringSubmatch(found)[1])
		if err != nil {
			return found
		}
		return `"` + strings.Repeat("x", n) + `"`
	})
}

// format writes a message in protobuf's text format, which leaves spaces to chance when prototext does it.
func format(m protoreflect.Message, separator string) string {
	var fields []string
	descriptors := m.Descriptor().Fields()
	for i := range descriptors.Len() {
		f := descriptors.Get(i)
		if !m.Has(f) || leftOut[f.FullName()] {
			continue
		}
		value := m.Get(f)
		if !f.IsList() {
			fields = append(fields, fmt.Sprintf("%s:%s", f.Name(), formatValue(f, value)))
			continue
		}
		for j := range value.List().Len() {
			fields = append(fields, fmt.Sprintf("%s:%s", f.Name(), formatValue(f, value.List().Get(j))))
		}
	}
	return strings.Join(fields, separator)
}

func formatValue(f protoreflect.FieldDescriptor, value protoreflect.Value) string {
	switch f.Kind() {
	case protoreflect.MessageKind:
		return "{" + format(value.Message(), " ") + "}"
	case protoreflect.EnumKind:
		return string(f.Enum().Values().ByNumber(value.Enum()).Name())
	case protoreflect.StringKind:
		if f.FullName() == "etcdserverpb.StatusResponse.errors" {
			// Alarms as prototext writes them: the spaces differ from one build of the program to another.
			return quote(strings.Join(strings.Fields(value.String()), " "))
		}
		return quote(value.String())
	case protoreflect.BytesKind:
		return quote(string(value.Bytes()))
	default:
		return value.String()
	}
}

func quote(s string) string {
	if len(s) > longest {
		return fmt.Sprintf(`"<%d bytes>"`, len(s))
	}
	return strconv.Quote(s)
}
