package db

func (d *DB) User(name string) (uid, gid uint32, ok bool) {
	i := d.passwd.find(name)
	uid, uidOK := d.passwd.id(i, fieldID)
	gid, gidOK := d.passwd.id(i, fieldGID)
	return uid, gid, uidOK && gidOK
}
