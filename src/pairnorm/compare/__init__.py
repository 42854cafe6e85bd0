"""Methods side by side: remedies against oversmoothing by depth, all methods where features are missing."""
