// SPDX-License-Identifier: Apache-2.0

package mad

import (
	"encoding/json"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"weft/internal/proto/ib"
)

// cmMessage is a message of the vectors with the fields that it has.
type cmMessage struct {
	Message string
	AttrID  string   `json:"attr_id"`
	MAD     hexBytes `json:"mad_hex"`
	Fields  map[string]any
}

// u is a number among the fields.
func (m *cmMessage) u(t *testing.T, name string) uint64 {
	t.Helper()
	switch v := m.Fields[name].(type) {
	case float64:
		return uint64(v)
	case string:
		n, err := strconv.ParseUint(strings.TrimPrefix(v, "0x"), 16, 64)
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	t.Fatalf("%s has no %s", m.Message, name)
	return 0
}

func (m *cmMessage) gid(t *testing.T, name string) ib.GID {
	t.Helper()
	s, _ := m.Fields[name].(string)
	a, err := netip.ParseAddr(s)
	if err != nil {
		t.Fatal(err)
	}
	return ib.GID(a.As16())
}

// TestCMVectors reads messages that were written out by hand, each field of which is stated beside
// them, and writes them again.
func TestCMVectors(t *testing.T) {
	b, err := os.ReadFile(filepath.Join("..", "..", "..", "test", "vectors", "headers.json"))
	if err != nil {
		t.Fatal(err)
	}
	var file struct {
		Messages struct{ Messages []cmMessage } `json:"cm_messages"`
	}
	if err := json.Unmarshal(b, &file); err != nil {
		t.Fatal(err)
	}
	if n := len(file.Messages.Messages); n != 11 {
		t.Fatalf("%d messages", n)
	}
	for _, m := range file.Messages.Messages {
		t.Run(m.Message, func(t *testing.T) {
			u32 := func(name string) uint32 { return uint32(m.u(t, name)) }
			u8 := func(name string) uint8 { return uint8(m.u(t, name)) }
			is := func(name string) bool { return m.u(t, name) != 0 }
			ids := func() CMIDs { return CMIDs{u32("local_comm_id"), u32("remote_comm_id")} }
			var c CM
			if err := c.Parse(m.MAD); err != nil {
				t.Fatal(err)
			}
			if id, err := strconv.ParseUint(m.AttrID[2:], 16, 16); err != nil || c.AttributeID != AttributeID(id) ||
				c.MgmtClass != ClassCM || c.ClassVersion != ClassVersionCM ||
				c.Method != MethodSend {
				t.Fatalf("header %+v, %v", c.Header, err)
			}
			var got, want codec
			switch m.Message {
			case "REQ":
				got = &CMREQ{}
				want = &CMREQ{LocalCommID: u32("local_comm_id"), ServiceID: m.u(t, "service_id"),
					CAGUID: ib.GUID(m.u(t, "local_ca_guid")), QPN: u32("local_qpn"),
					ResponderResources: u8("responder_resources"), InitiatorDepth: u8("initiator_depth"), RemoteResponseTimeout: u8("remote_cm_response_timeout"),
					Transport: u8("transport_service_type"), FlowControl: is("end_to_end_flow_control"), StartingPSN: u32("starting_psn"),
					LocalResponseTimeout: u8("local_cm_response_timeout"), RetryCount: u8("retry_count"), PKey: uint16(u32("pkey")), PathMTU: ib.MTU(u8("path_mtu")),
					RDCExists: is("rdc_exists"), RNRRetry: u8("rnr_retry_count"), MaxCMRetries: u8("max_cm_retries"), SRQ: is("srq"),
					Primary: CMPath{LocalLID: ib.LID(u32("primary_local_lid")),
						RemoteLID: ib.LID(u32("primary_remote_lid")), LocalGID: m.gid(t, "primary_local_gid"),
						RemoteGID: m.gid(t, "primary_remote_gid"), FlowLabel: u32("primary_flow_label"), Rate: ib.Rate(u8("primary_packet_rate")),
						TClass: u8("primary_traffic_class"), HopLimit: u8("primary_hop_limit"), SL: u8("primary_sl"), SubnetLocal: is("primary_subnet_local"),
						AckTimeout: u8("primary_local_ack_timeout")},
					PrivateData: [92]byte(m.MAD[HeaderLen+140:])}
			case "REP":
				got = &CMREP{}
				want = &CMREP{CMIDs: ids(), QPN: u32("local_qpn"), StartingPSN: u32("starting_psn"),
					ResponderResources: u8("responder_resources"),
					InitiatorDepth:     u8("initiator_depth"), AckDelay: u8("target_ack_delay"), Failover: u8("failover_accepted"),
					FlowControl: is("end_to_end_flow_control"), RNRRetry: u8("rnr_retry_count"), SRQ: is("srq"), CAGUID: ib.GUID(m.u(t, "local_ca_guid")),
					PrivateData: [196]byte(m.MAD[HeaderLen+36:])}
			case "RTU":
				got, want = &CMRTU{}, &CMRTU{CMIDs: ids(), PrivateData: [224]byte(m.MAD[HeaderLen+8:])}
			case "DREP":
				got, want = &CMDREP{}, &CMDREP{CMIDs: ids(), PrivateData: [224]byte(m.MAD[HeaderLen+8:])}
			case "DREQ":
				got, want = &CMDREQ{}, &CMDREQ{CMIDs: ids(), RemoteQPN: u32("remote_qpn"),
					PrivateData: [220]byte(m.MAD[HeaderLen+12:])}
			case "REJ":
				got = &CMREJ{}
				want = &CMREJ{CMIDs: ids(), Message: u8("message_rejected"), InfoLen: u8("rejected_info_length"),
					Reason: uint16(u32("reason")),
					Info:   [72]byte(m.MAD[HeaderLen+12:]), PrivateData: [148]byte(m.MAD[HeaderLen+84:])}
			case "MRA":
				got, want = &CMMRA{}, &CMMRA{CMIDs: ids(), Message: u8("message_mraed"),
					ServiceTimeout: u8("service_timeout"), PrivateData: [222]byte(m.MAD[HeaderLen+10:])}
			case "SIDR_REQ":
				got = &CMSIDRReq{}
				want = &CMSIDRReq{RequestID: u32("request_id"), PKey: uint16(u32("pkey")),
					ServiceID: m.u(t, "service_id"), PrivateData: [216]byte(m.MAD[HeaderLen+16:])}
			case "SIDR_REP":
				got = &CMSIDRRep{}
				want = &CMSIDRRep{RequestID: u32("request_id"), Status: u8("status"),
					InfoLen: u8("additional_info_length"), QPN: u32("qpn"),
					ServiceID: m.u(t, "service_id"), QKey: u32("qkey"), PrivateData: [136]byte(m.MAD[HeaderLen+96:])}
			case "LAP":
				got = &CMLAP{}
				want = &CMLAP{CMIDs: ids(), RemoteQPN: u32("remote_qpn"),
					RemoteResponseTimeout: u8("remote_cm_response_timeout"),
					Alternate: CMPath{LocalLID: ib.LID(u32("alternate_local_lid")),
						RemoteLID: ib.LID(u32("alternate_remote_lid")), LocalGID: m.gid(t, "alternate_local_gid"),
						RemoteGID: m.gid(t, "alternate_remote_gid"), FlowLabel: u32("flow_label"), TClass: u8("traffic_class"), HopLimit: u8("hop_limit"),
						Rate: ib.Rate(u8("packet_rate")), SL: u8("sl"), SubnetLocal: is("subnet_local"), AckTimeout: u8("local_ack_timeout")},
					PrivateData: [168]byte(m.MAD[HeaderLen+64:])}
			case "APR":
				got = &CMAPR{}
				want = &CMAPR{CMIDs: ids(), InfoLen: u8("additional_info_length"), Status: u8("ar_status"),
					PrivateData: [148]byte(m.MAD[HeaderLen+84:])}
			default:
				t.Fatalf("a message %s", m.Message)
			}
			if err := got.Parse(c.Data[:]); err != nil {
				t.Fatal(err)
			}
			if d := cmp.Diff(want, got); d != "" {
				t.Errorf("want, got: %s", d)
			}
			again := NewCM(c.AttributeID, c.TransactionID)
			want.Append(again.Data[:0])
			if d := cmp.Diff([]byte(m.MAD), again.Append(nil)); d != "" {
				t.Errorf("written again: %s", d)
			}
		})
	}
}
