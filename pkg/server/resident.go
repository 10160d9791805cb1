package server

import (
	"bufio"
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// releaseProgram gives back the pages of the program itself, code and constants: a start touches most of them, an idle server few. What is
// touched again is read again, mostly from the system's own cache of the file.
func releaseProgram() error { return adviseProgram(unix.MADV_DONTNEED) }

// adviseProgram gives the kernel an advice on every mapping of the program file that may only be read.
func adviseProgram(advice int) error {
	program, err := os.Executable()
	if err != nil {
		return err
	}
	maps, err := os.Open("/proc/self/smaps")
	if err != nil {
		return err
	}
	defer maps.Close()
	var (
		start, end uintptr // of the mapping that the lines are about; 0: not one of the program that may only be read
		lines      = bufio.NewScanner(maps)
	)
	for lines.Scan() {
		line := lines.Text()
		fields := strings.Fields(line)
		switch {
		case len(fields) < 3:
		case !strings.HasSuffix(fields[0], ":"): // the first line of a mapping: addresses permissions offset device inode path
			start, end = 0, 0
			if len(fields) == 6 && fields[5] == program && !strings.Contains(fields[1], "w") {
				if _, err := fmt.Sscanf(fields[0], "%x-%x", &start, &end); err != nil {
					return fmt.Errorf("cannot read %q: %w", line, err)
				}
			}
		// What was changed in memory, by relocation or by a debugger, is not in the file and must stay.
		case start != 0 && fields[0] == "Anonymous:" && fields[1] == "0":
			if _, _, errno := unix.Syscall(unix.SYS_MADVISE, start, end-start, uintptr(advice)); errno != 0 {
				return errno
			}
		}
	}
	return lines.Err()
}
