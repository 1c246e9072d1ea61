//! lunette-scsi
