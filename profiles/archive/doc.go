// Package archive exports a profile to an archive while its gateway runs, and imports a profile from an archive.
//
// An archive is a tar stream. Its first file, the head, describes the archive and gives its size. The tar header of each other
// file contains the SHA-256 of that file. The last file contains a checksum of the whole archive. [Export] copies the home of the
// profile into a snapshot, in passes, until a pass finds no change. Then it writes the snapshot as an archive. [Import] unpacks
// an archive into a temporary directory beside the homes. A single rename makes this directory the home of the profile.
//
// The package trusts neither the home nor the archive. But it follows links in the path of the home, which an agent can make. So
// root must call it in [fsutil.Actor.Do], with the identity of the home's owner. It starts a goroutine only to copy a database,
// and waits until this goroutine ends.
package archive
