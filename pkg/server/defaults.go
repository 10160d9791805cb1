package server

import (
	"crypto/x509"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/kubernetes/pkg/controlplane/reconcilers"
	"k8s.io/kubernetes/pkg/kubeapiserver/authorizer/modes"
	"k8s.io/kubernetes/plugin/pkg/admission/noderestriction"
	netutils "k8s.io/utils/net"

	"github.com/kubase/kubase/pkg/server/lifecycle"
	"github.com/kubase/kubase/pkg/server/pki"
)

const (
	defaultServiceCIDR = "10.43.0.0/16"
	defaultIssuer      = "https://kubernetes.default.svc.cluster.local"

	// frontProxyUser is the name in the certificate of the aggregator.
	frontProxyUser = "front-proxy-client"
)

// clientUsers are those who get a certificate and a kubeconfig, both with this file name, on the server's machine.
var clientUsers = []struct {
	file   string
	name   string
	groups []string
}{
	{adminFile, "kubernetes-admin", []string{user.SystemPrivilegedGroup}},
	{controllerManagerFile, user.KubeControllerManager, nil}, // the built-in roles are bound to the names
	{schedulerFile, user.KubeScheduler, nil},
}

const (
	adminFile             = "admin"
	controllerManagerFile = "controller-manager"
	schedulerFile         = "scheduler"
)

// completeAddresses decides the service range, and the address that the endpoints of the service "kubernetes" have.
func (o *Options) completeAddresses() {
	if o.ServiceClusterIPRanges == "" {
		o.ServiceClusterIPRanges = defaultServiceCIDR
	}
	run, secure := o.GenericServerRunOptions, o.SecureServing
	if run.AdvertiseAddress != nil && !run.AdvertiseAddress.IsUnspecified() {
		return
	}
	if o.standalone && secure.BindAddress.IsLoopback() {
		o.advertiseNothing(secure.BindAddress)
		return
	}
	if _, err := secure.DefaultExternalAddress(); err == nil {
		return // upstream chooses the address of the default route
	}
	// There is no default route, and upstream would give up.
	for _, ip := range machineAddresses() {
		if !ip.IsLoopback() {
			run.AdvertiseAddress = ip
			return
		}
	}
	o.advertiseNothing(net.IPv4(127, 0, 0, 1))
}

// advertiseNothing leaves the service "kubernetes" without endpoints: nobody but this machine can reach the server, and
// an endpoint must not have a loopback address.
func (o *Options) advertiseNothing(address net.IP) {
	o.GenericServerRunOptions.AdvertiseAddress = address
	if !o.given("endpoint-reconciler-type") {
		o.EndpointReconcilerType = string(reconcilers.NoneEndpointReconcilerType)
	}
}

func (o *Options) completeSecurity(anonymousHealthOnly bool) {
	if len(o.Authorization.Modes) == 0 && o.Authorization.AuthorizationConfigurationFile == "" {
		o.Authorization.Modes = []string{modes.ModeNode, modes.ModeRBAC}
	}
	if len(o.Authentication.ServiceAccounts.Issuers) == 0 {
		o.Authentication.ServiceAccounts.Issuers = []string{defaultIssuer}
	}
	if o.standalone && !o.given("enable-bootstrap-token-auth") {
		o.Authentication.BootstrapToken.Enable = true // lets nobody in until somebody makes a token
	}
	if plugins := o.Admission.GenericAdmission; o.standalone && !o.given("admission-control", "enable-admission-plugins") &&
		!slices.Contains(plugins.DisablePlugins, noderestriction.PluginName) {
		plugins.EnablePlugins = []string{noderestriction.PluginName}
	}
	if anonymousHealthOnly {
		o.Authentication.Anonymous.Allow = false // the configuration adds its own authenticator
	}
}

// completeFiles points every flag that names a key or a certificate, and that the user left empty, at one in the data
// directory, and writes the kubeconfigs it can. It touches the directory only if something is missing.
func (o *Options) completeFiles() (files, error) {
	f := files{options: o}
	f.serving()
	f.clients()
	f.serviceAccounts()
	f.frontProxy()
	return f, f.err
}

// files fills in file flags. The first error sticks and makes the rest do nothing.
type files struct {
	options    *Options
	dir        *pki.Dir
	clusterCA  *pki.CA
	servingCA  string // verifies the serving certificate
	kubeconfig string
	err        error
}

func (f *files) open() *pki.Dir {
	if f.dir == nil && f.err == nil {
		f.dir, f.err = pki.Open(filepath.Join(f.options.DataDir, "pki"), nil)
	}
	return f.dir
}

func (f *files) ca(name, commonName string) *pki.CA {
	dir := f.open()
	if f.err != nil {
		return nil
	}
	var ca *pki.CA
	ca, f.err = dir.CA(name, commonName)
	return ca
}

// cluster is the authority behind the serving certificate and the certificates of clients.
func (f *files) cluster() *pki.CA {
	if f.clusterCA == nil {
		f.clusterCA = f.ca("ca", "kubase-ca")
	}
	return f.clusterCA
}

func (f *files) certificate(ca *pki.CA, name string, r pki.Request) pki.Pair {
	if f.err != nil {
		return pki.Pair{}
	}
	var pair pki.Pair
	pair, f.err = f.dir.Certificate(ca, name, r)
	return pair
}

func (f *files) serving() {
	cert := &f.options.SecureServing.ServerCert.CertKey
	if cert.CertFile != "" || cert.KeyFile != "" {
		f.servingCA = cert.CertFile // nobody told us who signed it
		return
	}
	if f.options.given("cert-dir") {
		return // upstream makes one that signs itself
	}
	names, ips := f.options.servingNames()
	pair := f.certificate(f.cluster(), "apiserver", pki.Request{
		CommonName: "kube-apiserver", DNSNames: names, IPs: ips, Usage: x509.ExtKeyUsageServerAuth,
	})
	if f.err != nil {
		return
	}
	cert.CertFile, cert.KeyFile = pair.CertFile, pair.KeyFile
	f.servingCA = f.clusterCA.CertFile
}

func (f *files) clients() {
	if kubelet := &f.options.KubeletConfig.TLSClientConfig; kubelet.CertFile == "" && kubelet.KeyFile == "" {
		pair := f.certificate(f.cluster(), "apiserver-kubelet-client", pki.Request{
			CommonName:    "kube-apiserver-kubelet-client",
			Organizations: []string{user.SystemPrivilegedGroup},
			Usage:         x509.ExtKeyUsageClientAuth,
		})
		kubelet.CertFile, kubelet.KeyFile = pair.CertFile, pair.KeyFile
	}
	clientCert := f.options.Authentication.ClientCert
	if clientCert.ClientCA != "" {
		return // only the user can sign what this authority vouches for
	}
	ca := f.cluster()
	if f.err != nil {
		return
	}
	clientCert.ClientCA = ca.CertFile
	for _, u := range clientUsers {
		pair := f.certificate(ca, u.file, pki.Request{CommonName: u.name, Organizations: u.groups, Usage: x509.ExtKeyUsageClientAuth})
		if f.err != nil || f.servingCA == "" { // without it nobody could verify the server
			continue
		}
		path := filepath.Join(f.options.DataDir, u.file+".kubeconfig")
		f.err = pki.Kubeconfig{Server: f.options.serverURL(), CAFile: f.servingCA, User: u.name, UserPair: pair}.Write(path)
		if u.file == adminFile {
			f.kubeconfig = path
		}
	}
}

// lifecycle names the files that the controllers in this server may use.
func (f *files) lifecycle() lifecycle.Files {
	files := lifecycle.Files{RootCA: f.servingCA, ServiceAccountKey: f.options.ServiceAccountSigningKeyFile}
	if f.clusterCA != nil && f.options.Authentication.ClientCert.ClientCA == f.clusterCA.CertFile { // else the server would not believe it
		files.SigningCert, files.SigningKey = f.clusterCA.CertFile, f.clusterCA.KeyFile
	}
	return files
}

func (f *files) serviceAccounts() {
	o, accounts := f.options, f.options.Authentication.ServiceAccounts
	if o.ServiceAccountSigningEndpoint != "" {
		return
	}
	if o.ServiceAccountSigningKeyFile == "" && len(accounts.KeyFiles) == 0 {
		if dir := f.open(); f.err == nil {
			o.ServiceAccountSigningKeyFile, f.err = dir.ServiceAccountKey()
		}
	}
	if len(accounts.KeyFiles) == 0 && f.err == nil {
		accounts.KeyFiles = []string{o.ServiceAccountSigningKeyFile}
	}
}

// frontProxy has an authority of its own: whoever holds a certificate of it can speak in the name of any user.
func (f *files) frontProxy() {
	o, headers := f.options, f.options.Authentication.RequestHeader
	if o.ProxyClientCertFile != "" || o.ProxyClientKeyFile != "" || headers.ClientCAFile != "" {
		return
	}
	ca := f.ca("front-proxy-ca", "kubase-front-proxy-ca")
	pair := f.certificate(ca, "front-proxy-client", pki.Request{CommonName: frontProxyUser, Usage: x509.ExtKeyUsageClientAuth})
	if f.err != nil {
		return
	}
	o.ProxyClientCertFile, o.ProxyClientKeyFile = pair.CertFile, pair.KeyFile
	headers.ClientCAFile = ca.CertFile
	setDefault(&headers.AllowedNames, frontProxyUser)
	setDefault(&headers.UsernameHeaders, "X-Remote-User")
	setDefault(&headers.GroupHeaders, "X-Remote-Group")
	setDefault(&headers.ExtraHeaderPrefixes, "X-Remote-Extra-")
}

func setDefault(list *[]string, value string) {
	if len(*list) == 0 {
		*list = []string{value}
	}
}

// servingNames is what clients may call this server.
func (o *Options) servingNames() (names []string, ips []net.IP) {
	names = []string{
		"localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc.cluster.local",
	}
	if host, err := os.Hostname(); err == nil && host != "localhost" {
		names = append(names, host)
	}
	ips = machineAddresses()
	for _, ip := range []net.IP{o.SecureServing.BindAddress, o.GenericServerRunOptions.AdvertiseAddress, o.serviceIP()} {
		if ip != nil && !ip.IsUnspecified() {
			ips = append(ips, ip)
		}
	}
	if host := o.GenericServerRunOptions.ExternalHost; host != "" {
		if ip := netutils.ParseIPSloppy(host); ip != nil {
			ips = append(ips, ip)
		} else {
			names = append(names, host)
		}
	}
	return names, ips
}

// serviceIP is the address of the service "kubernetes", nil if the range is not one; upstream reports that.
func (o *Options) serviceIP() net.IP {
	first, _, _ := strings.Cut(o.ServiceClusterIPRanges, ",")
	_, cidr, err := netutils.ParseCIDRSloppy(first)
	if err != nil {
		return nil
	}
	ip, err := netutils.GetIndexedIP(cidr, 1)
	if err != nil {
		return nil
	}
	return ip
}

// serverURL is where a client on this machine finds the server.
func (o *Options) serverURL() string {
	host := o.SecureServing.BindAddress
	if host.IsUnspecified() {
		host = net.IPv4(127, 0, 0, 1)
	}
	return fmt.Sprintf("https://%s", net.JoinHostPort(host.String(), strconv.Itoa(o.SecureServing.BindPort)))
}

// machineAddresses returns the addresses of this machine that mean something to others, and the loopback ones. An
// interface that cannot be asked is one that nobody will use to get here.
func machineAddresses() []net.IP {
	ips := []net.IP{net.IPv4(127, 0, 0, 1), net.IPv6loopback}
	addresses, err := net.InterfaceAddrs()
	if err != nil {
		return ips
	}
	for _, address := range addresses {
		if network, ok := address.(*net.IPNet); ok && network.IP.IsGlobalUnicast() {
			ips = append(ips, network.IP)
		}
	}
	return ips
}
