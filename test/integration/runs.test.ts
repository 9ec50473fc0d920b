/** Training jobs that share one proxy: each has a run, whose key opens its own sessions and no others. */

import t, { type Test } from 'tap'
import type { Logger } from '../../src/base/logger.ts'
import { createRunKey } from '../../src/proxy/http/access/agent-key.ts'
import { KEYS } from '../helpers/keys.ts'
import { createListingLogger } from '../helpers/listing-logger.ts'
import { startSessionsApi } from '../helpers/sessions-api.ts'
import { silentLogger } from '../helpers/silent-logger.ts'

const [ADMIN] = KEYS.adminKeys as [string]
const [SECRET] = KEYS.agentKeySecrets as [string]

type ApiBody = Record<string, unknown> & { sessions: { session_id: string }[]; run_key: string }

async function startShared(t: Test, logger: Logger = silentLogger) {
  const { url } = await startSessionsApi(t, undefined, {}, { keys: KEYS, logger })
  return async (key: string, method: string, path: string, body?: object) => {
    const response = await fetch(url + path, {
      method,
      headers: { authorization: `Bearer ${key}`, 'content-type': 'application/json' },
      ...(body && { body: JSON.stringify(body) }),
    })
    return { status: response.status, body: (await response.json()) as ApiBody }
  }
}

t.test('two jobs give their sessions the same names, and neither sees the other', async (t) => {
  const sendRequest = await startShared(t)
  const { body } = await sendRequest(ADMIN, 'GET', '/admin/runs/job-1/key')
  t.same(body, { run: 'job-1', run_key: createRunKey(SECRET, 'job-1') })
  const [one, two] = [body.run_key, createRunKey(SECRET, 'job-2')]
  for (const [key, run] of [
    [one, 'job-1'],
    [two, 'job-2'],
  ] as const) {
    const id = `runs/${run}/harbor/hello-world:0`
    t.match(await sendRequest(key, 'POST', '/sessions', { session_id: id }), { body: { status: 'created' } })
    t.match(await sendRequest(key, 'POST', `/sessions/${id}/reward`, { reward: 1 }), {
      body: { session_id: id },
    })
    t.match(await sendRequest(key, 'POST', '/sessions', {}), {
      body: { session_id: new RegExp(`^runs/${run}/[^/]+$`) },
    })
  }
  await sendRequest(ADMIN, 'POST', '/sessions', { session_id: 'of-no-run' })
  const foreign = '/sessions/runs/job-2/harbor/hello-world:0'
  for (const [method, path, sent] of [
    ['GET', foreign],
    ['DELETE', foreign],
    ['POST', `${foreign}/reward`, { reward: 0 }],
    ['GET', `${foreign}/trajectories`],
    ['GET', '/sessions/of-no-run'],
    ['POST', '/sessions', { session_id: 'runs/job-2/new' }],
    ['POST', '/sessions', { session_id: 'runs/job-10/new' }],
    ['POST', '/sessions/batch_delete', { session_ids: ['runs/job-1/x', 'of-no-run'] }],
    ['POST', '/sessions/batch_delete', { run: 'job-2' }],
    ['GET', '/sessions?run=job-2'],
    ['GET', '/groups?by=task&run=job-2'],
    ['GET', '/events'],
    ['GET', '/admin/runs/job-1/key'],
    ['POST', '/admin/pause'],
    ['POST', '/runs/job-2/s/v1/chat/completions', { model: 'm', messages: [] }],
  ] as const)
    t.equal((await sendRequest(one, method, path, sent)).status, 403, `${method} ${path}`)

  const list = async (key: string, query = '') =>
    (await sendRequest(key, 'GET', `/sessions${query}`)).body.sessions.map(({ session_id: id }) => id)
  t.equal((await list(one)).length, 2)
  t.ok((await list(one)).every((id) => id.startsWith('runs/job-1/')))
  t.equal((await list(ADMIN)).length, 5)
  t.strictSame((await list(ADMIN, '?run=job-2')).sort(), (await list(two)).sort())
  t.match(await sendRequest(two, 'POST', '/sessions/batch_delete', { run: 'job-2' }), {
    body: { deleted: 2 },
  })
  t.equal((await list(ADMIN)).length, 3)
})

t.test('a run has its own consumers, which get its sessions and no others', async (t) => {
  const sendRequest = await startShared(t)
  const [one, two] = [createRunKey(SECRET, 'job-1'), createRunKey(SECRET, 'job-2')]
  for (const key of [one, two]) {
    t.match(await sendRequest(key, 'POST', '/consumers/trainer', {}), { body: { status: 'created' } })
    const { session_id: id } = (await sendRequest(key, 'POST', '/sessions', {})).body
    await sendRequest(key, 'POST', `/sessions/${id}/complete`)
  }
  t.match(await sendRequest(ADMIN, 'POST', '/consumers/trainer', {}), {
    body: { status: 'created', run: null },
  })
  const prefixes = async (key: string) => {
    const { body } = await sendRequest(key, 'POST', `/consumers/trainer/fetch`, { limit: 9, lease_s: 0.001 })
    return body.sessions.map(({ session_id: id }) => id.split('/')[1]).sort()
  }
  t.strictSame(await prefixes(one), ['job-1'])
  t.strictSame(await prefixes(two), ['job-2'])
  t.strictSame(await prefixes(ADMIN), ['job-1', 'job-2'])
  t.match((await sendRequest(one, 'GET', '/consumers')).body, {
    consumers: [{ consumer: 'trainer', run: 'job-1' }],
  })
  t.match((await sendRequest(ADMIN, 'GET', '/consumers')).body, { consumers: [{}, {}, {}] })
  for (const [method, path, body] of [
    ['GET', '/consumers/trainer?run=job-2'],
    ['POST', '/consumers/trainer/fetch?run=job-2', {}],
    ['POST', '/consumers/trainer/ack?run=job-2', { lease_id: 'l' }],
    ['DELETE', '/consumers/trainer?run=job-2'],
  ] as const)
    t.equal((await sendRequest(one, method, path, body)).status, 403, `${method} ${path}`)
  t.match((await sendRequest(one, 'DELETE', '/consumers/trainer')).body, { status: 'deleted' })
  t.equal((await sendRequest(two, 'GET', '/consumers/trainer')).status, 200)
})

t.test('an invalid run or deletion is rejected by name', async (t) => {
  const sendRequest = await startShared(t)
  for (const [method, path, sent, param] of [
    ['POST', '/sessions', { session_id: 'runs/job-1' }, 'session_id'],
    ['GET', '/sessions?run=a/b', undefined, 'run'],
    ['GET', '/sessions?run=', undefined, 'run'],
    ['GET', '/admin/runs/../key', undefined, null],
  ] as const) {
    const { status, body } = await sendRequest(ADMIN, method, path, sent)
    t.match(body, { param }, `${method} ${path}`)
    t.equal(status, param === null ? 404 : 400, `${method} ${path}`)
  }
  t.match(await sendRequest(ADMIN, 'POST', '/sessions/batch_delete', {}), {
    status: 400,
    body: { detail: 'The request must not be empty' },
  })
  t.equal((await sendRequest(`${createRunKey(SECRET, 'job-1')}x`, 'GET', '/sessions')).status, 401)
  t.equal(
    (await sendRequest(createRunKey('another-secret-of-nobody', 'job-1'), 'GET', '/sessions')).status,
    401,
  )
})

t.test('changes are audited in the log, reads and rejected requests are not', async (t) => {
  const { logger, lines } = createListingLogger()
  const sendRequest = await startShared(t, logger)
  const run = createRunKey(SECRET, 'job-1')
  await sendRequest(run, 'POST', '/sessions', { session_id: 'runs/job-1/s' })
  await sendRequest(run, 'GET', '/sessions/runs/job-1/s')
  await sendRequest(run, 'DELETE', '/sessions/of-another')
  await sendRequest(run, 'POST', '/sessions/runs/job-1/s/reward', { reward: 1 })
  await sendRequest(ADMIN, 'DELETE', '/sessions/runs/job-1/s')
  const by = 'run job-1'
  t.strictSame(
    lines
      .filter(({ level }) => level === 'audit')
      .map(({ route, by, address, status, session_id }) => ({ route, by, address, status, session_id })),
    [
      { route: 'POST /sessions', by },
      { route: 'POST /sessions/:sessionId/reward', by },
      { route: 'DELETE /sessions/:sessionId', by: 'admin' },
    ].map((line) => ({ ...line, address: '127.0.0.1', status: 200, session_id: 'runs/job-1/s' })),
  )
})
