import t from 'tap'
import { toDatabaseName } from '../../../../../src/proxy/store/port/database-name.ts'

t.test('a database is named without its password', async (t) => {
  t.equal(
    toDatabaseName('postgres://user:hunter2@db:5432/proxy?password=hunter2'),
    'postgres://user@db:5432/proxy',
  )
  for (const url of ['postgres://user:hunter/2@db/proxy', 'postgres://user:12/3@db/proxy'])
    t.notMatch(toDatabaseName(url), /hunter|12/, 'a slash in a password is not encoded')
  t.equal(toDatabaseName('folder/proxy.db'), 'folder/proxy.db')
})
