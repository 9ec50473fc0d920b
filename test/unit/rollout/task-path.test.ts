import { join } from 'node:path'
import t from 'tap'
import { findTaskPath } from '../../../src/rollout/task-path.ts'

t.test(
  'a task is at the path of its row, else in a dataset directory, else at the path of the template',
  async (t) => {
    const root = t.testdir({ a: { other: {}, here: {} }, b: { one: {} }, c: { one: {} } })
    const datasetDirs = ['a', 'b', 'c'].map((name) => join(root, name))
    const options = { datasetDirs, taskPathTemplate: '/tasks/{instance_id}/task' }
    const here = join(root, 'a', 'here')
    t.equal(findTaskPath({ instance_id: 'one', local_task_path: here }, options), here)
    t.equal(
      findTaskPath({ instance_id: 'one', local_task_path: join(root, 'gone') }, options),
      join(root, 'b', 'one'),
      'a path that is not a directory is skipped; the first dataset directory that has the task is used',
    )
    t.equal(findTaskPath({ instance_id: 'two' }, options), '/tasks/two/task')
    t.equal(findTaskPath({ instance_id: 2 }, options), '/tasks/2/task')
  },
)

t.test('an unknown row has no task directory', async (t) => {
  t.equal(findTaskPath({ instance_id: 'one' }, { datasetDirs: [], taskPathTemplate: undefined }), undefined)
  t.equal(findTaskPath({}, { datasetDirs: [], taskPathTemplate: '/tasks/{instance_id}' }), undefined)
})

t.test('a row cannot name a path outside its dataset', async (t) => {
  const root = t.testdir({ dataset: {}, secret: {} })
  const options = { datasetDirs: [join(root, 'dataset')], taskPathTemplate: undefined }
  for (const instanceId of ['../secret', '.', '', '..']) {
    t.equal(findTaskPath({ instance_id: instanceId }, options), undefined, instanceId)
  }
})

t.test('no template, link or path of a row leads out of the configured directories', async (t) => {
  const root = t.testdir({ dataset: { one: {}, link: t.fixture('symlink', '../secret') }, secret: {} })
  const dataset = join(root, 'dataset')
  const templated = { datasetDirs: [], taskPathTemplate: `${dataset}/{instance_id}` }
  for (const instanceId of ['../secret', '..', '.', 'a/../../secret', 'link', 'x\0']) {
    t.equal(findTaskPath({ instance_id: instanceId }, templated), undefined, instanceId)
  }
  t.equal(findTaskPath({ instance_id: 'a/b' }, templated), join(dataset, 'a/b'))
  const prefixed = { datasetDirs: [], taskPathTemplate: `${dataset}/task-{instance_id}/x` }
  t.equal(findTaskPath({ instance_id: '/../../../secret' }, prefixed), undefined)
  for (const options of [templated, { datasetDirs: [dataset], taskPathTemplate: undefined }]) {
    for (const local of [join(root, 'secret'), join(dataset, 'link'), dataset, '/']) {
      t.equal(
        findTaskPath({ instance_id: 'two', local_task_path: local }, options)?.endsWith('two') ?? true,
        true,
      )
    }
    t.equal(findTaskPath({ local_task_path: join(dataset, 'one') }, options), join(dataset, 'one'))
  }
  const trusting = { datasetDirs: [], taskPathTemplate: undefined }
  t.equal(findTaskPath({ local_task_path: join(root, 'secret') }, trusting), join(root, 'secret'))
})
