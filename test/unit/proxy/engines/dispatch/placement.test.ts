import t from 'tap'
import {
  chooseMember,
  findLeastLoaded,
  isClearlyMoreLoaded,
  listCandidates,
  type MemberLoad,
} from '../../../../../src/proxy/engines/dispatch/placement.ts'

function member(
  id: string,
  inFlight: number,
  maxConcurrency: number,
  more: Partial<MemberLoad> = {},
): MemberLoad {
  return {
    id,
    inFlight,
    maxConcurrency,
    healthy: true,
    draining: false,
    models: [],
    sessions: 0,
    lastStart: 0,
    ...more,
  }
}

const ids = (members: MemberLoad[]) => members.map(({ id }) => id)

t.test('the rest of a response is sampled by weights that are not older', (t) => {
  const versions = { a: '9', b: '10', c: undefined, d: 'step-1' }
  const members = Object.entries(versions).map(([id, weightVersion]) => member(id, 0, 1, { weightVersion }))
  const able = (minWeightVersion?: string) => ids(listCandidates(members, { minWeightVersion })).join('')
  t.equal(able(), 'abcd')
  t.equal(able('9'), 'abcd')
  t.equal(able('10'), 'bcd', 'numbers are compared as numbers')
  t.equal(able('11'), 'cd', 'an unknown version is not assumed to be older')
  t.equal(able('step-2'), 'abcd', 'names have no order')
  t.end()
})

t.test('a member is clearly more loaded than another', (t) => {
  const cases: [string, MemberLoad, MemberLoad, boolean][] = [
    ['when it is full and the other idle', member('a', 1, 1), member('b', 0, 1), true],
    ['when it is full and the other three quarters full', member('a', 4, 4), member('b', 3, 4), true],
    ['not when both are nearly full', member('a', 8, 8), member('b', 7, 8), false],
    ['when it has four more requests and twice the load', member('a', 40, 256), member('b', 20, 256), true],
    ['not when it has less than twice the load', member('a', 39, 256), member('b', 20, 256), false],
    ['not when it has three more requests', member('a', 3, 256), member('b', 0, 256), false],
    ['not when it only has the smaller limit', member('a', 3, 4), member('b', 30, 100), false],
    [
      'by its requests of other proxies too',
      member('a', 1, 9, { busyElsewhere: 3 }),
      member('b', 0, 9),
      true,
    ],
  ]
  for (const [title, home, other, expected] of cases)
    t.equal(isClearlyMoreLoaded(home, other), expected, title)
  t.end()
})

t.test('the least loaded member is selected', (t) => {
  t.equal(findLeastLoaded([]), undefined, 'none without members')
  t.equal(findLeastLoaded([member('a', 2, 4), member('b', 3, 8)])?.id, 'b', 'relative to its limit')
  t.equal(
    findLeastLoaded([member('a', 1, 4, { sessions: 5 }), member('b', 1, 4, { sessions: 2 })])?.id,
    'b',
    'among equals, the one with fewer sessions',
  )
  t.equal(
    findLeastLoaded([member('a', 1, 4, { lastStart: 7 }), member('b', 1, 4, { lastStart: 3 })])?.id,
    'b',
    'with equal sessions, the one that started a request longest ago',
  )
  t.equal(
    findLeastLoaded([member('a', 1, 4), member('b', 1, 4)])?.id,
    'a',
    'among identical ones, the older one',
  )
  t.equal(
    findLeastLoaded([member('a', 0, 8, { busyElsewhere: 5 }), member('b', 4, 8)])?.id,
    'b',
    'including its requests of other proxies',
  )
  t.end()
})

t.test('the candidates for a request are the members that can serve it', (t) => {
  const qwen = member('qwen', 0, 1, { models: ['qwen'] })
  const llama = member('llama', 0, 1, { models: ['llama'] })
  const any = member('any', 0, 1)
  t.same(ids(listCandidates([qwen, llama, any], { model: 'qwen' })), ['qwen', 'any'], 'serve its model')
  t.same(
    ids(listCandidates([qwen, llama, any], { model: 'qwen', mustServe: true })),
    ['qwen'],
    'list it, where no other member may serve',
  )
  t.same(ids(listCandidates([qwen, llama, any], { model: 'gpt', mustServe: true })), [], 'or do not exist')
  t.same(
    ids(listCandidates([qwen, llama], { model: 'gpt' })),
    ['qwen', 'llama'],
    'are all members when none lists it',
  )
  t.same(
    ids(listCandidates([{ ...qwen, healthy: false }, llama], { model: 'qwen' })),
    [],
    'are none while the only member with the model is unhealthy',
  )
  const plain = member('plain', 0, 1, { lacks: ['completion'] })
  t.same(ids(listCandidates([plain, any], { needs: 'completion' })), ['any'], 'have the required capability')
  t.same(
    ids(listCandidates([plain, any], { needs: 'token_ids' })),
    ['plain', 'any'],
    'may lack another capability',
  )
  t.same(ids(listCandidates([plain], { needs: 'completion' })), ['plain'], 'are all members when none has it')
  t.same(
    ids(listCandidates([plain, { ...any, healthy: false }], { needs: 'completion' })),
    [],
    'are none while the capable one does not serve',
  )
  t.same(ids(listCandidates([{ ...qwen, draining: true }, any], {})), ['any'], 'do not drain')
  t.same(ids(listCandidates([qwen, any], { avoid: ['qwen'] })), ['any'], 'have not failed it')
  t.same(
    ids(listCandidates([qwen], { avoid: ['qwen'] })),
    ['qwen'],
    'have failed it only if there is no other',
  )
  t.end()
})

t.test('a request is placed', (t) => {
  t.equal(chooseMember([member('a', 2, 4), member('b', 0, 4)], 'a')?.id, 'a', 'a session stays at its member')
  t.equal(
    chooseMember([member('a', 2, 4), member('b', 0, 4)], 'gone')?.id,
    'b',
    'a session moves when its member is gone',
  )
  t.equal(
    chooseMember([member('a', 8, 8), member('b', 7, 8)], 'a'),
    undefined,
    'waits for its member if that is about as full as others',
  )
  t.equal(chooseMember([member('a', 8, 8)], undefined), undefined, 'waits when all are full')
  t.end()
})
