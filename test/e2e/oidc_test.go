package e2e

import (
	"crypto/rand"
	"crypto/rsa"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	jose "gopkg.in/go-jose/go-jose.v2"
	"gopkg.in/go-jose/go-jose.v2/jwt"
	authenticationv1 "k8s.io/api/authentication/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// issuer is an OpenID Connect provider: it publishes where its keys are, and signs.
type issuer struct {
	*httptest.Server
	signer jose.Signer
}

func startIssuer(t *testing.T) *issuer {
	t.Helper()
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	i := &issuer{}
	if i.signer, err = jose.NewSigner(jose.SigningKey{Algorithm: jose.RS256, Key: jose.JSONWebKey{Key: key, KeyID: "a"}}, nil); err != nil {
		t.Fatal(err)
	}
	keys := jose.JSONWebKeySet{Keys: []jose.JSONWebKey{{Key: key.Public(), KeyID: "a", Algorithm: string(jose.RS256), Use: "sig"}}}
	mux := http.NewServeMux()
	for path, document := range map[string]func() any{
		"/.well-known/openid-configuration": func() any { return map[string]string{"issuer": i.URL, "jwks_uri": i.URL + "/keys"} },
		"/keys":                             func() any { return keys },
	} {
		mux.HandleFunc(path, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			if err := json.NewEncoder(w).Encode(document()); err != nil {
				t.Errorf("cannot answer the API server: %v", err)
			}
		})
	}
	i.Server = httptest.NewTLSServer(mux)
	t.Cleanup(i.Close)
	return i
}

// caPEM is the certificate that vouches for the issuer.
func (i *issuer) caPEM() string {
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: i.Certificate().Raw}))
}

// token signs Jane's claims, some of them changed, or left out with nil. No two tokens are the same, so none is answered from a cache.
func (i *issuer) token(t *testing.T, change map[string]any) string {
	t.Helper()
	claims := map[string]any{
		"iss": i.URL, "aud": "kubase", "sub": "1", "name": "jane", "groups": []string{"dev", "ops"}, "tenant": "a",
		"exp": time.Now().Add(time.Hour).Unix(), "jti": rand.Text(),
	}
	maps.Copy(claims, change)
	maps.DeleteFunc(claims, func(_ string, value any) bool { return value == nil })
	token, err := jwt.Signed(i.signer).Claims(claims).CompactSerialize()
	if err != nil {
		t.Fatal(err)
	}
	return token
}

// whoAmI is who the server takes the bearer of the token for.
func (s *server) whoAmI(t *testing.T, token string) (authenticationv1.UserInfo, error) {
	t.Helper()
	review, err := s.withToken(t, token).AuthenticationV1().SelfSubjectReviews().Create(t.Context(), &authenticationv1.SelfSubjectReview{}, metav1.CreateOptions{})
	if err != nil {
		return authenticationv1.UserInfo{}, err
	}
	return review.Status.UserInfo, nil
}

// expectUser wants the token to be this user's.
func (s *server) expectUser(t *testing.T, token string, want authenticationv1.UserInfo) {
	t.Helper()
	got, err := s.whoAmI(t, token)
	if err != nil {
		t.Errorf("%s is not let in: %v", want.Username, err)
	}
	delete(got.Extra, "authentication.kubernetes.io/credential-id") // of the token, not of the user
	if diff := cmp.Diff(want, got, cmp.Transformer("none", func(e map[string]authenticationv1.ExtraValue) string { return fmt.Sprint(e) })); diff != "" {
		t.Errorf("the user (-want +got):\n%s", diff)
	}
}

// expectUnauthorized wants tokens that are not right to be refused.
func (s *server) expectUnauthorized(t *testing.T, tokens map[string]string) {
	t.Helper()
	for why, token := range tokens {
		if user, err := s.whoAmI(t, token); !apierrors.IsUnauthorized(err) {
			t.Errorf("%s: %v, %v, want unauthorized", why, user, err)
		}
	}
}

// wrongTokens are those that no configuration in these tests takes.
func wrongTokens(t *testing.T, i *issuer) map[string]string {
	t.Helper()
	stranger := startIssuer(t)
	return map[string]string{
		"wrong audience":       i.token(t, map[string]any{"aud": "other"}),
		"expired":              i.token(t, map[string]any{"exp": time.Now().Add(-time.Minute).Unix()}),
		"not yet valid":        i.token(t, map[string]any{"nbf": time.Now().Add(time.Hour).Unix()}),
		"without a name":       i.token(t, map[string]any{"name": nil}),
		"another issuer":       stranger.token(t, nil),
		"another issuer's key": stranger.token(t, map[string]any{"iss": i.URL}),
	}
}

func (i *issuer) flags(t *testing.T) []string {
	t.Helper()
	return []string{
		"--oidc-issuer-url=" + i.URL, "--oidc-ca-file=" + writeFile(t, i.caPEM()), "--oidc-client-id=kubase", "--oidc-required-claim=tenant=a",
		"--oidc-username-claim=name", "--oidc-username-prefix=oidc:", "--oidc-groups-claim=groups", "--oidc-groups-prefix=oidc:",
	}
}

func testOIDCByFlags(t *testing.T, s *server, i *issuer) {
	s.expectUser(t, i.token(t, nil), authenticationv1.UserInfo{Username: "oidc:jane", Groups: []string{"oidc:dev", "oidc:ops", "system:authenticated"}})
	s.expectUnauthorized(t, wrongTokens(t, i))
	s.expectUnauthorized(t, map[string]string{"without a claim that is required": i.token(t, map[string]any{"tenant": "b"})})
}

// authenticationConfig takes tokens for this audience.
func (i *issuer) authenticationConfig(audience string) string {
	return fmt.Sprintf(`
apiVersion: apiserver.config.k8s.io/v1
kind: AuthenticationConfiguration
anonymous: {enabled: true, conditions: [{path: /livez}]}
jwt:
- issuer:
    url: %q
    audiences: [%q]
    certificateAuthority: |
      %s
  claimMappings:
    username: {expression: "'oidc:' + claims.name"}
    groups: {expression: "dyn(claims.groups).filter(g, g != 'ops')"}
    uid: {claim: sub}
    extra: [{key: example.com/tenant, valueExpression: claims.tenant}]
  claimValidationRules: [{expression: "claims.tenant in ['a', 'c']", message: unknown tenant}]
  userValidationRules: [{expression: "!user.username.endsWith('root')", message: nobody is root}]
`, i.URL, audience, strings.ReplaceAll(strings.TrimSpace(i.caPEM()), "\n", "\n      "))
}

func testOIDCByConfiguration(t *testing.T, s *server, i *issuer, file string) {
	jane := authenticationv1.UserInfo{
		Username: "oidc:jane", UID: "1", Groups: []string{"dev", "system:authenticated"},
		Extra: map[string]authenticationv1.ExtraValue{"example.com/tenant": {"c"}},
	}
	c := map[string]any{"tenant": "c"}
	s.expectUser(t, i.token(t, c), jane)
	s.expectUnauthorized(t, wrongTokens(t, i))
	s.expectUnauthorized(t, map[string]string{
		"a claim that is not valid": i.token(t, map[string]any{"tenant": "b"}),
		"a user that is not valid":  i.token(t, map[string]any{"name": "root"}),
	})
	for path, want := range map[string]int{"/livez": http.StatusOK, "/readyz": http.StatusUnauthorized} {
		var got int
		s.withToken(t, "").Discovery().RESTClient().Get().AbsPath(path).Do(t.Context()).StatusCode(&got)
		if got != want {
			t.Errorf("an anonymous request for %s got %d, want %d", path, got, want)
		}
	}

	// A file that is wrong changes nothing, one that is right does.
	const failures = `apiserver_authentication_config_controller_automatic_reloads_total{apiserver_id_hash="`
	reloads := s.counted(t, failures)
	replaceFile(t, file, "kind: Nonsense")
	eventually(t, "the server has tried the wrong file", func() error {
		if s.counted(t, failures) == reloads {
			return fmt.Errorf("%g reloads", reloads)
		}
		return nil
	})
	s.expectUser(t, i.token(t, c), jane)
	replaceFile(t, file, i.authenticationConfig("renamed"))
	renamed := map[string]any{"tenant": "c", "aud": "renamed"}
	eventually(t, "the new audience counts", func() error {
		_, err := s.whoAmI(t, i.token(t, renamed))
		return err
	})
	s.expectUser(t, i.token(t, renamed), jane)
	s.expectUnauthorized(t, map[string]string{"the old audience": i.token(t, c)})
}

// replaceFile changes a file at once, as those do who must not be read half.
func replaceFile(t *testing.T, path, content string) {
	t.Helper()
	if err := os.WriteFile(path+".new", []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		t.Fatal(err)
	}
}
