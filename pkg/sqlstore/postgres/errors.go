package postgres

import (
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/kubase/kubase/pkg/sqlstore"
)

// SQLSTATE codes and classes, from the appendix of the Postgres manual.
const (
	diskFull             = "53100"
	programLimitExceeded = "54000" // what we write has one limit: the length of a key in an index
	lockNotAvailable     = "55P03"
	serializationFailure = "40001"
	deadlockDetected     = "40P01"
	queryCanceled        = "57014"
	readOnlyTransaction  = "25006"

	classConnection    = "08"
	classResources     = "53"
	classIntervention  = "57"
	classAuthorization = "28"
	classUnknownName   = "3D"
)

// wrap marks a driver's error with the sentinel that says what it means to the store.
func wrap(err error) error {
	if err == nil {
		return nil
	}
	var pg *pgconn.PgError
	if errors.As(err, &pg) {
		switch {
		case pg.Code == diskFull:
			return fmt.Errorf("%w: %w", sqlstore.ErrNoSpace, err)
		case pg.Code == programLimitExceeded:
			return fmt.Errorf("%w: %w", sqlstore.ErrKeyTooLong, err)
		case pg.Code == lockNotAvailable, pg.Code == serializationFailure, pg.Code == deadlockDetected,
			pg.Code == queryCanceled, pg.Code == readOnlyTransaction, // of a standby, after a failover
			pg.Code[:2] == classConnection, pg.Code[:2] == classResources, pg.Code[:2] == classIntervention:
			return fmt.Errorf("%w: %w", sqlstore.ErrUnavailable, err)
		}
		return err
	}
	if connectionLost(err) {
		return fmt.Errorf("%w: %w", sqlstore.ErrUnavailable, err)
	}
	return err
}

// refused says whether the server is there but will never let this client in as it is configured.
func refused(err error) bool {
	var pg *pgconn.PgError
	return errors.As(err, &pg) && (pg.Code[:2] == classAuthorization || pg.Code[:2] == classUnknownName)
}

// untrusted says whether the server is there but its certificate is not as the DSN wants it.
func untrusted(err error) bool {
	var certificate *tls.CertificateVerificationError
	return errors.As(err, &certificate)
}

// connectionLost says whether err comes from the connection and not from the server.
func connectionLost(err error) bool {
	var network net.Error
	var connect *pgconn.ConnectError
	return errors.As(err, &network) || errors.As(err, &connect) || pgconn.SafeToRetry(err) ||
		errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, net.ErrClosed)
}

// unknownOutcome says whether a transaction may have been committed although its COMMIT answered with err: unless the server
// said no and stayed, it may.
func unknownOutcome(err error) bool {
	var pg *pgconn.PgError
	if errors.As(err, &pg) {
		return pg.SeverityUnlocalized != "ERROR"
	}
	return true
}
