module weft

go 1.26.0

require (
	github.com/google/go-cmp v0.7.0
	github.com/gopacket/gopacket v1.7.7
	golang.org/x/sys v0.49.0
)

require golang.org/x/net v0.55.0 // indirect
