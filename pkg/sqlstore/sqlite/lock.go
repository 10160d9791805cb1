package sqlite

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// lockFile takes the lock that keeps a second process off a database. The lock ends with the process, however that ends; the
// file stays and holds the pid of its last holder.
func lockFile(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("opening the lock file: %w", err)
	}
	switch err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); {
	case errors.Is(err, unix.EWOULDBLOCK):
		holder, _ := io.ReadAll(io.LimitReader(f, 32))
		return nil, errors.Join(
			fmt.Errorf("database %s is in use by process %s: stop that one first, or choose another file",
				strings.TrimSuffix(path, "-lock"), strings.TrimSpace(string(holder))),
			f.Close())
	case err != nil:
		return nil, errors.Join(fmt.Errorf("locking %s: %w", path, err), f.Close())
	}
	err = f.Truncate(0)
	if err == nil {
		_, err = fmt.Fprintln(f, os.Getpid())
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("writing %s: %w", path, err), f.Close())
	}
	return f, nil
}

// Magic numbers of file systems that do not lie on a local disk, from statfs(2).
var networkFilesystems = map[int64]string{
	unix.NFS_SUPER_MAGIC:  "NFS",
	unix.SMB_SUPER_MAGIC:  "SMB",
	unix.SMB2_SUPER_MAGIC: "SMB2",
	unix.CIFS_SUPER_MAGIC: "CIFS",
	unix.V9FS_MAGIC:       "9P",
	unix.CEPH_SUPER_MAGIC: "Ceph",
	unix.AFS_SUPER_MAGIC:  "AFS",
	unix.FUSE_SUPER_MAGIC: "FUSE",
}

func refuseNetworkFilesystem(dir string) error {
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return fmt.Errorf("looking at %s: %w", dir, err)
	}
	if name, ok := networkFilesystems[int64(st.Type)]; ok {
		return fmt.Errorf("%s lies on a %s file system, where SQLite may lose data: use a local disk, or Postgres, or add ?allow-network-filesystem=true to the DSN", dir, name)
	}
	return nil
}
