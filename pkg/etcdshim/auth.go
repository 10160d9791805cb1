package etcdshim

import (
	"context"
	"encoding/base64"
	"fmt"
	"slices"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"go.etcd.io/etcd/server/v3/auth"
	"golang.org/x/crypto/bcrypt"
	"google.golang.org/protobuf/proto"
)

type authServer struct {
	*server
	pb.UnsafeAuthServer
}

// withHeader is an answer of this service.
type withHeader interface {
	proto.Message
	GetHeader() *pb.ResponseHeader
}

// complete puts the header into an answer, or turns an error into etcd's.
func complete[A withHeader](s *authServer, a A, err error) (A, error) {
	var none A
	if err != nil {
		return none, s.rpcError(err)
	}
	m := a.ProtoReflect()
	m.Mutable(m.Descriptor().Fields().ByName("header"))
	proto.Merge(a.GetHeader(), s.header(s.store.Revision()))
	return a, nil
}

// who is who sends a request, and what is known; nobody while authentication is off.
func (s *authServer) who(ctx context.Context, r proto.Message) (who *auth.AuthInfo, state *authState, err error) {
	if s.opts.Auth == nil {
		return nil, nil, rpctypes.ErrGRPCAuthNotEnabled // everybody is trusted here
	}
	if state, err = s.opts.Auth.newest(ctx); err != nil {
		return nil, nil, err
	}
	who = &auth.AuthInfo{}
	err = state.check(ctx, s.opts.ClientCertAuth, func(_ *authState, found *auth.AuthInfo) error {
		who = found
		return nil
	})
	if err == nil && proto.Size(r) > s.opts.MaxRequestBytes {
		err = rpctypes.ErrGRPCRequestTooLarge
	}
	return who, state, err
}

// change answers a request that changes something: only an administrator may, once authentication is on.
func change[Q proto.Message, A withHeader](ctx context.Context, s *authServer, r Q, operation func(auth.AuthStore, Q) (A, error)) (A, error) {
	var out A
	who, _, err := s.who(ctx, r)
	if err == nil {
		err = s.opts.Auth.change(ctx, who, func(store auth.AuthStore) (err error) {
			out, err = operation(store, r)
			return err
		})
	}
	return complete(s, out, err)
}

// query answers a request that changes nothing.
func query[Q proto.Message, A withHeader](ctx context.Context, s *authServer, r Q, may rule, operation func(auth.AuthStore, Q) (A, error)) (A, error) {
	var out A
	who, state, err := s.who(ctx, r)
	if err == nil {
		err = may(state, who)
	}
	if err == nil {
		out, err = operation(state, r)
	}
	return complete(s, out, err)
}

func (s *authServer) AuthEnable(ctx context.Context, r *pb.AuthEnableRequest) (*pb.AuthEnableResponse, error) {
	return change(ctx, s, r, func(store auth.AuthStore, _ *pb.AuthEnableRequest) (*pb.AuthEnableResponse, error) {
		return &pb.AuthEnableResponse{}, store.AuthEnable()
	})
}

func (s *authServer) AuthDisable(ctx context.Context, r *pb.AuthDisableRequest) (*pb.AuthDisableResponse, error) {
	return change(ctx, s, r, func(store auth.AuthStore, _ *pb.AuthDisableRequest) (*pb.AuthDisableResponse, error) {
		store.AuthDisable()
		return &pb.AuthDisableResponse{}, nil
	})
}

func (s *authServer) AuthStatus(ctx context.Context, r *pb.AuthStatusRequest) (*pb.AuthStatusResponse, error) {
	if s.opts.Auth == nil {
		return complete(s, &pb.AuthStatusResponse{}, nil)
	}
	_, state, err := s.who(ctx, r)
	if err != nil {
		return nil, s.rpcError(err)
	}
	return complete(s, &pb.AuthStatusResponse{Enabled: state.IsAuthEnabled(), AuthRevision: state.Revision()}, nil)
}

// Authenticate exchanges a name and a password for a token. The password may be changed meanwhile: then it is checked again.
func (s *authServer) Authenticate(ctx context.Context, r *pb.AuthenticateRequest) (*pb.AuthenticateResponse, error) {
	if s.opts.Auth == nil {
		return nil, rpctypes.ErrGRPCAuthNotEnabled
	}
	state, err := s.opts.Auth.newest(ctx)
	for err == nil {
		var out *pb.AuthenticateResponse
		if out, err = s.opts.Auth.authenticate(ctx, state, r); err != nil {
			break
		}
		checked := state
		if state, err = s.opts.Auth.newest(ctx); err == nil && state == checked {
			return complete(s, out, nil)
		}
	}
	return nil, s.rpcError(err)
}

func (a *Auth) authenticate(ctx context.Context, state *authState, r *pb.AuthenticateRequest) (*pb.AuthenticateResponse, error) {
	if _, err := state.CheckPassword(r.Name, r.Password); err != nil {
		return nil, err
	}
	prefix, err := state.GenTokenPrefix()
	if err != nil {
		return nil, err
	}
	ctx = context.WithValue(ctx, auth.AuthenticateParamIndex{}, a.lastToken.Add(1))
	ctx = context.WithValue(ctx, auth.AuthenticateParamSimpleTokenPrefix{}, prefix)
	return state.Authenticate(ctx, r.Name, r.Password)
}

// hash takes long, so it is done before the store is asked.
func (a *Auth) hash(password string) (string, error) {
	hashed, err := bcrypt.GenerateFromPassword([]byte(password), a.cost)
	if err != nil {
		return "", fmt.Errorf("the password cannot be hashed: %w", err)
	}
	return base64.StdEncoding.EncodeToString(hashed), nil
}

func (s *authServer) UserAdd(ctx context.Context, r *pb.AuthUserAddRequest) (_ *pb.AuthUserAddResponse, err error) {
	if s.opts.Auth != nil && !r.Options.GetNoPassword() {
		if r.HashedPassword, err = s.opts.Auth.hash(r.Password); err != nil {
			return nil, s.rpcError(err)
		}
	}
	return change(ctx, s, r, auth.AuthStore.UserAdd)
}

func (s *authServer) UserChangePassword(ctx context.Context, r *pb.AuthUserChangePasswordRequest) (_ *pb.AuthUserChangePasswordResponse, err error) {
	if s.opts.Auth != nil && r.Password != "" {
		if r.HashedPassword, err = s.opts.Auth.hash(r.Password); err != nil {
			return nil, s.rpcError(err)
		}
	}
	return change(ctx, s, r, auth.AuthStore.UserChangePassword)
}

func (s *authServer) UserDelete(ctx context.Context, r *pb.AuthUserDeleteRequest) (*pb.AuthUserDeleteResponse, error) {
	return change(ctx, s, r, auth.AuthStore.UserDelete)
}

func (s *authServer) UserGrantRole(ctx context.Context, r *pb.AuthUserGrantRoleRequest) (*pb.AuthUserGrantRoleResponse, error) {
	return change(ctx, s, r, auth.AuthStore.UserGrantRole)
}

func (s *authServer) UserRevokeRole(ctx context.Context, r *pb.AuthUserRevokeRoleRequest) (*pb.AuthUserRevokeRoleResponse, error) {
	return change(ctx, s, r, auth.AuthStore.UserRevokeRole)
}

func (s *authServer) RoleAdd(ctx context.Context, r *pb.AuthRoleAddRequest) (*pb.AuthRoleAddResponse, error) {
	return change(ctx, s, r, auth.AuthStore.RoleAdd)
}

func (s *authServer) RoleDelete(ctx context.Context, r *pb.AuthRoleDeleteRequest) (*pb.AuthRoleDeleteResponse, error) {
	return change(ctx, s, r, auth.AuthStore.RoleDelete)
}

func (s *authServer) RoleGrantPermission(ctx context.Context, r *pb.AuthRoleGrantPermissionRequest) (*pb.AuthRoleGrantPermissionResponse, error) {
	return change(ctx, s, r, auth.AuthStore.RoleGrantPermission)
}

func (s *authServer) RoleRevokePermission(ctx context.Context, r *pb.AuthRoleRevokePermissionRequest) (*pb.AuthRoleRevokePermissionResponse, error) {
	return change(ctx, s, r, auth.AuthStore.RoleRevokePermission)
}

// UserGet shows everybody himself.
func (s *authServer) UserGet(ctx context.Context, r *pb.AuthUserGetRequest) (*pb.AuthUserGetResponse, error) {
	himself := func(state *authState, who *auth.AuthInfo) error {
		if r.Name == who.Username {
			return nil
		}
		return isAdmin(state, who)
	}
	return query(ctx, s, r, himself, auth.AuthStore.UserGet)
}

// RoleGet shows everybody the roles that he has.
func (s *authServer) RoleGet(ctx context.Context, r *pb.AuthRoleGetRequest) (*pb.AuthRoleGetResponse, error) {
	his := func(state *authState, who *auth.AuthInfo) error {
		err := isAdmin(state, who)
		if user := state.backend.GetUser(who.Username); err != nil && user != nil && slices.Contains(user.Roles, r.Role) {
			return nil
		}
		return err
	}
	return query(ctx, s, r, his, auth.AuthStore.RoleGet)
}

func (s *authServer) UserList(ctx context.Context, r *pb.AuthUserListRequest) (*pb.AuthUserListResponse, error) {
	return query(ctx, s, r, isAdmin, auth.AuthStore.UserList)
}

func (s *authServer) RoleList(ctx context.Context, r *pb.AuthRoleListRequest) (*pb.AuthRoleListResponse, error) {
	return query(ctx, s, r, isAdmin, auth.AuthStore.RoleList)
}
