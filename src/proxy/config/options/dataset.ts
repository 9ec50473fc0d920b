/** Options of the commands that create data sets. */
import { addFlagGroup, type CommandConfig, type CommandSpec } from '../option.ts'

export const DATASET_HARBOR = {
  name: 'dataset harbor',
  summary: "Make a data set with verl's columns from Harbor task directories, one Parquet file per split",
  options: {
    ...addFlagGroup('Tasks', {
      train: {
        flag: 'train',
        type: 'directory',
        help: 'Tasks for train.parquet: directories with task.toml and instruction.md, at any depth up to 6',
      },
      val: {
        flag: 'val',
        type: 'directory',
        help: 'Tasks for val.parquet',
      },
      limit: {
        flag: 'limit',
        type: 'integer',
        min: '1',
        help: 'Maximum number of tasks per split; the first by name are used',
      },
    }),
    ...addFlagGroup('Output', {
      out: {
        flag: 'out',
        type: 'directory',
        help: 'Directory for the files; an unchanged file is not rewritten',
      },
      dataSource: {
        flag: 'data-source',
        type: 'text',
        default: 'harbor',
        help: 'Name of the data set, in the column data_source',
      },
    }),
  },
} as const satisfies CommandSpec

export type DatasetHarborConfig = CommandConfig<typeof DATASET_HARBOR>
